#!/bin/bash
# FILE BINARIES CONTROL_PLANE DEBIAN: writes the images of a cluster's own components into one tar file. kubeadm and
# kind find them in the node under these names.
set -euo pipefail
NAME="add-ons"
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

file=$1 binaries=$2 control_plane=$3 debian=$4
version=$(pinned kubernetes k8s.io/kubernetes)
wanted=$("$binaries/kubeadm" config images list --image-repository kind.local --kubernetes-version "$version")
wanted_tag() { sed -n "s#^kind.local/$1:##p" <<<"$wanted"; }
made=()

lone() { # FOLDER BINARY TAG: an image of one static binary
  tar --directory "$1" --owner=0 --group=0 --create "$2" |
    docker import --change "ENTRYPOINT [\"/$2\"]" --change 'ENV PATH=/' - "kind.local/$2:$3" >/dev/null
  made+=("kind.local/$2:$3")
}

network() { # kube-proxy and netlite, with the tools that they run
  local context
  context=$(mktemp -d)
  cp "$binaries"/{kube-proxy,netlite} "$context/"
  docker_build --tag "kind.local/kube-proxy:$version" --tag kind.local/netlite:v1 --file - "$context" <<DOCKERFILE
FROM $debian
RUN apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      iptables nftables conntrack >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
COPY kube-proxy netlite /usr/local/bin/
DOCKERFILE
  rm -rf "$context"
  made+=("kind.local/kube-proxy:$version" kind.local/netlite:v1)
}

for component in kube-apiserver kube-controller-manager kube-scheduler; do
  folder=$binaries
  if [[ $component == kube-apiserver ]]; then folder=$control_plane; fi
  lone "$folder" $component "$version"
done
lone "$control_plane" etcd "$(wanted_tag etcd)"
lone "$binaries" coredns "$(pinned coredns github.com/coredns/coredns)"
lone "$binaries" pause "$(wanted_tag pause)"
lone "$binaries" local-path-provisioner v1
docker tag "$debian" kind.local/local-path-helper:v1
made+=(kind.local/local-path-helper:v1)
network
docker save --output "$file" "${made[@]}"
docker rmi "${made[@]}" >/dev/null
