#!/bin/bash
# BASE_IMAGE: builds the training-operator from its Go module and prints a directory with its manifests; the file
# `images` in it names the images to load into the node.
set -euo pipefail
NAME=training-operator
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
GO_MODULE=github.com/kubeflow/training-operator

make_operator() { # the manifests say that its binary is /manager
  local sources
  build_in_place training-operator $GO_MODULE "" "$1/manager" ./cmd/training-operator.v1 &&
    sources=$(module_dir training-operator $GO_MODULE) &&
    cp -r --no-preserve=mode "$sources/manifests" "$1/" &&
    sed "s/@TAG@/$tag/" "$HERE/training-operator/kustomization.yaml" >"$1/kustomization.yaml" &&
    printf '%s\n' "$operator" "$nslookup" >"$1/images"
}

one_at_a_time training-operator
tag=$(pinned training-operator $GO_MODULE)-$(digest "$HERE/training-operator" "$MODULES/training-operator")
operator=rlguard-test/training-operator:$tag
nslookup=rlguard-test/nslookup:$tag
directory=$CACHE/training-operator-$tag
once "$directory" make_operator
have_image "$operator" ||
  tar --directory "$directory" --owner=0 --group=0 --create manager | docker import - "$operator" >/dev/null
docker_build --build-arg BASE_IMAGE="$1" --tag "$nslookup" - <"$HERE/training-operator/Dockerfile.nslookup"
echo "$directory"
