#!/bin/bash
# KIND NODE_IMAGE [OPTION...]: a cluster whose node runs that image. One that does already is kept.
set -euo pipefail
NAME=cluster
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kind=$1 image=$2
running=$(nodes | xargs --no-run-if-empty docker inspect --format '{{.Config.Image}} {{.State.Running}}')
if [[ $running == "$image true" && -r $CLUSTER_KUBECONFIG ]]; then
  say "$CLUSTER is there and has that node image"
  exit
fi
"$HERE/down.sh"
mkdir -p "$(dirname "$CLUSTER_KUBECONFIG")"
"$kind" create cluster --name "$CLUSTER" --image "$image" --kubeconfig "$CLUSTER_KUBECONFIG" "${@:3}" >&2
# kind's own --wait ends well even if the node never gets ready.
docker exec "$(nodes)" kubectl --kubeconfig /etc/kubernetes/admin.conf \
  wait --for=condition=Ready node --all --timeout=180s >&2
