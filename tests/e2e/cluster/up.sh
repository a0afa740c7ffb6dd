#!/bin/bash
# A kind cluster with the training-operator in it and RLGuard's images in its node, for the end-to-end tests. The
# last line on stdout is a JSON object that says where it is and which tools go with it; progress is on stderr.
# PART... is what it gets, too: controllers (kuberay, jobset, trainer, kueue), with kuberay also an image of the trainer with
# Ray; vllm is an image of the guard with vLLM's build for CPUs.
#
# Everything is made once and kept: tools and node binaries in $CACHE, images in Docker. Run again, it brings an
# existing cluster up to date with the working tree. RLGUARD_E2E_CLUSTER names the cluster.
set -euo pipefail
shopt -s inherit_errexit # a stage that fails inside $(...) ends this script, too
NAME=e2e
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PUBLIC_BASE=debian:bookworm-slim
# The node image with our minor version of Kubernetes among those that the release notes of the pinned kind list.
PUBLIC_NODE=kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d
declare -A images=([operator]="rlguard/operator:$VERSION" [guard-hf]="rlguard/guard-hf:$VERSION" [trainer]="rlguard/trainer:$VERSION")

public_registry() { have_image "$PUBLIC_BASE" || timeout 60 docker pull --quiet "$PUBLIC_BASE" >/dev/null 2>&1; }

choose_images() { # sets base, node and config: the one place that decides where images come from
  if public_registry; then
    say "a public registry answers: kind's own node image, and $PUBLIC_BASE below our images"
    base=$PUBLIC_BASE node=$PUBLIC_NODE config=()
  else
    say "no public registry answers: node image and base image are made from Debian packages and Go modules"
    base=$(stage "base image" "$HERE/base-image.sh")
    node=$(stage "node image" "$HERE/node/build.sh")
    config=(--config "$HERE/node/kind.yaml")
  fi
}

describe() {
  python3 - "$CLUSTER" "$CLUSTER_KUBECONFIG" "$tools/kind" "$tools/kubectl" "$helm" "${images[@]@k}" <<'PY'
import json, sys
name, kubeconfig, kind, kubectl, helm, *images = sys.argv[1:]
tools = {"kind": kind, "kubectl": kubectl, "helm": helm}
images = dict(zip(images[::2], images[1::2]))
print(json.dumps({"name": name, "kubeconfig": kubeconfig, **tools, "images": images}))
PY
}

docker info >/dev/null 2>&1 ||
  { say "no Docker daemon answers: start one (as root on Debian: $HERE/docker-daemon.sh start)"; exit 1; }
choose_images
tools=$(stage "kind and kubectl" "$HERE/tools.sh")
helm=$(stage "helm" "$ROOT/tests/chart/build.sh")
helm=${helm%%$'\n'*}
training_operator=$(stage "training-operator" "$HERE/training-operator/build.sh" "$base")
stage "RLGuard's images" "$HERE/product-images.sh" "$base"
kinds=() kind_images=()
for part in "$@"; do
  if [[ $part == vllm ]]; then images[guard-vllm]=$(stage "guard with vLLM" "$HERE/vllm/build.sh" "$base"); continue; fi
  kinds+=("$(stage "$part" "$HERE/kinds/build.sh" "$part")")
  kind_images+=("$(<"${kinds[-1]}/images")")
  if [[ $part == kuberay ]]; then images[ray]=$(stage "trainer with Ray" "$HERE/ray/build.sh" "${images[trainer]}"); fi
done
stage "cluster" "$HERE/create.sh" "$tools/kind" "$node" "${config[@]}"
mapfile -t training_operator_images <"$training_operator/images"
stage "loading images" "$HERE/load-images.sh" "${training_operator_images[@]}" "${images[@]}" "${kind_images[@]}"
# Our operator's tag is the same as before, so nothing else has it start the new image.
"$tools/kubectl" --kubeconfig "$CLUSTER_KUBECONFIG" --namespace rlguard-system delete pods \
  --selector app.kubernetes.io/name=rlguard,app.kubernetes.io/component=operator >/dev/null
stage "training-operator in the cluster" "$HERE/training-operator/install.sh" "$tools/kubectl" "$training_operator"
for directory in "${kinds[@]}"; do
  stage "${directory##*/} in the cluster" "$HERE/kinds/install.sh" "$tools/kubectl" "$directory"
done
describe
