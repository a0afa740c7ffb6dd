#!/bin/bash
# IMAGE...: copies images from Docker into the cluster's node, all in one stream, so that a layer which several have
# goes once. `kind load` would write the stream to a file first. What the node has already is not sent again.
set -euo pipefail
NAME="load images"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

node=$(nodes)
[[ -n $node ]] || { say "there is no cluster $CLUSTER: run $HERE/up.sh"; exit 1; }
ctr() { docker exec --interactive "$node" ctr --namespace k8s.io images "$@"; }

present=$(ctr list --quiet)
missing=()
for image in "$@"; do
  id=$(docker image inspect --format '{{.Id}}' "$image")
  if grep -qxF "$id" <<<"$present"; then # containerd's CRI part names every image by its ID, too
    ctr tag --force "$id" "docker.io/$image" >/dev/null
  else
    missing+=("$image")
  fi
done
if ((${#missing[@]})); then
  say "sending ${missing[*]}"
  # Discarded: the layers as files, once they are unpacked. Else the large images would take 13 GB in the node, not 7.
  docker save "${missing[@]}" | ctr import --all-platforms --local --discard-unpacked-layers - >/dev/null
fi
