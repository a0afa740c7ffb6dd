#!/bin/bash
# Prints the directory with everything that runs in the node and is no Debian package, kube-apiserver and etcd apart:
# the integration tests start those too, see tests/operator/controlplane. About 10 minutes on two cores, once.
set -euo pipefail
NAME="node binaries"
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

make_binaries() {
  local commands=k8s.io/kubernetes/cmd containerd=github.com/containerd/containerd/v2
  build kubernetes "$(kubernetes_flags)" "$1/" ./netlite \
    $commands/{kubeadm,kubelet,kube-controller-manager,kube-scheduler,kube-proxy} &&
    build kubernetes "" "$1/" github.com/rancher/local-path-provisioner && # alone: it writes Sirupsen, kubeadm sirupsen
    build coredns "" "$1/coredns" . &&
    GOFLAGS="$GOFLAGS -tags=no_aufs,no_zfs,no_btrfs,no_devmapper" build_in_place containerd $containerd \
      "-X $containerd/version.Version=$(pinned containerd $containerd)" "$1/" \
      ./cmd/{containerd,ctr,containerd-shim-runc-v2} &&
    gcc -Os -static -s -o "$1/pause" "$HERE/node/pause.c"
}

one_at_a_time node-binaries
inputs=("$HERE"/node/{binaries.sh,pause.c} "$MODULES"/{containerd,coredns,kubernetes})
binaries=$CACHE/node-binaries-$(digest "${inputs[@]}")
once "$binaries" make_binaries
echo "$binaries"
