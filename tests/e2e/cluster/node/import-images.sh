#!/bin/bash
# FILE: puts images into the store of the containerd that will run in the node, with that containerd. Runs inside the
# build of the node image, where nothing may be mounted: so only the store is on, and nothing is unpacked yet.
set -euo pipefail

cat >/tmp/store.toml <<'TOML'
version = 2
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri",
]
TOML
containerd --config /tmp/store.toml >/tmp/containerd.log 2>&1 &
for _ in {1..50}; do
  if ctr version >/dev/null 2>&1; then break; fi
  sleep 0.2
done
# pinned: the kubelet's garbage collection leaves them alone
ctr --namespace k8s.io images import --label io.cri-containerd.pinned=pinned --all-platforms --no-unpack \
  --digests "$1" ||
  { cat /tmp/containerd.log; exit 1; }
kill %1
wait %1 || true
rm -rf /tmp/store.toml /tmp/containerd.log /run/containerd
