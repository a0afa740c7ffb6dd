#!/bin/bash
# KIND (kuberay, jobset, trainer or kueue): builds the controller of that kind as tests/kinds does, and prints a directory with
# the manifests of its Go module; the file `images` in it names the image to load into the node.
set -euo pipefail
NAME=$1
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
case $NAME in
kuberay) GO_MODULE=github.com/ray-project/kuberay/ray-operator MANIFESTS=config ;;
jobset) GO_MODULE=sigs.k8s.io/jobset MANIFESTS=config ;;
trainer) GO_MODULE=github.com/kubeflow/trainer/v2 MANIFESTS=manifests ;;
kueue) GO_MODULE=sigs.k8s.io/kueue MANIFESTS=config ;;
*) say "there is no such kind" && exit 2 ;;
esac

make_manifests() {
  local sources
  sources=$(module_dir "$NAME" $GO_MODULE) &&
    cp -r --no-preserve=mode "$sources/$MANIFESTS" "$1/" &&
    cp "$HERE/kinds/$NAME"/*.yaml "$1/" &&
    sed --in-place "s/@TAG@/$tag/" "$1/kustomization.yaml" &&
    echo "$image" >"$1/images"
}

controller=$("$ROOT/tests/kinds/build.sh" "$NAME")
one_at_a_time "$NAME-manifests"
tag=$(pinned "$NAME" $GO_MODULE)-$(digest "$HERE/kinds/build.sh" "$HERE/kinds/$NAME" "$MODULES/$NAME")
image=rlguard-test/$NAME-controller:$tag
directory=$CACHE/$NAME-manifests-$tag
once "$directory" make_manifests
# Their manifests want a user that is not root.
have_image "$image" || tar --directory "$controller" --owner=0 --group=0 --create manager |
  docker import --change 'USER 65532:65532' --change 'ENTRYPOINT ["/manager"]' - "$image" >/dev/null
echo "$directory"
