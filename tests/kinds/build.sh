#!/bin/bash
# KIND (kuberay, jobset, trainer or kueue): prints a directory with the controller of that kind, called `manager`, and
# its CRDs; of Kueue and the Trainer, which have several, with their webhooks, too.
#
# What is missing is built once from the Go module at the version that go.mod pins and kept in $CACHE: 3 to 6
# minutes on two cores.
set -euo pipefail
NAME=$1
source "$(dirname "${BASH_SOURCE[0]}")/../go/modules.sh"
case $NAME in
kuberay) GO_MODULE=github.com/ray-project/kuberay/ray-operator CRDS=config/crd/bases MAIN=. ;;
jobset) GO_MODULE=sigs.k8s.io/jobset CRDS=config/components/crd/bases MAIN=. ;;
trainer) GO_MODULE=github.com/kubeflow/trainer/v2 CRDS=manifests/base/crds MAIN=./cmd/trainer-controller-manager
  WEBHOOKS=manifests/base/webhook/manifests.yaml ;;
kueue) GO_MODULE=sigs.k8s.io/kueue CRDS=config/components/crd/bases MAIN=./cmd/kueue
  WEBHOOKS=config/components/webhook/manifests.yaml ;;
*) say "there is no such kind" && exit 2 ;;
esac

make_controller() {
  local sources
  build_in_place "$NAME" $GO_MODULE "" "$1/manager" $MAIN &&
    sources=$(module_dir "$NAME" $GO_MODULE) &&
    mkdir -p "$1/crds" &&
    install -m 644 "$sources/$CRDS"/*_*.yaml "$1/crds/" &&
    if [[ -n ${WEBHOOKS:-} ]]; then install -m 644 "$sources/$WEBHOOKS" "$1/webhooks.yaml"; fi
}

one_at_a_time "$NAME"
directory=$CACHE/$NAME-$(pinned "$NAME" $GO_MODULE)-$(digest "$MODULES/$NAME")
once "$directory" make_controller
echo "$directory"
