#!/bin/bash
# A kind cluster with the training-operator in it and RLGuard's images in its node, for the end-to-end tests. The
# last line on stdout is a JSON object that says where it is and which tools go with it; progress is on stderr.
# PART... is what it gets, too: controllers (kuberay, jobset, trainer, kueue), with kuberay also an image of the trainer with
# Ray; vllm is an image of the guard with vLLM's build for CPUs.
#
# Everything is made once and kept: tools and node binaries in $CACHE, images in Docker. If a stage fails, what was
# finished stays, and the next run goes on there. Run again, it brings an existing cluster up to date with the working
# tree. RLGUARD_E2E_CLUSTER names the cluster.
set -euo pipefail
shopt -s inherit_errexit # a command that fails inside $(...) ends this script, too
NAME=kind-up
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The node image with our minor version of Kubernetes among those that the release notes of the pinned kind list.
PUBLIC_NODE=kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d
declare -A images=([operator]="rlguard/operator:$VERSION" [guard-hf]="rlguard/guard-hf:$VERSION" [trainer]="rlguard/trainer:$VERSION")

check_machine() { # everything that is missing, in one message
  local missing message=""
  missing=$("$HERE/missing.sh")
  [[ -z $missing ]] || message+="
- packages. As root on Debian: apt-get update && apt-get install --no-install-recommends $missing"
  docker info >/dev/null 2>&1 || message+="
- a Docker daemon that responds. As root on Debian: $HERE/docker-daemon.sh start"
  if [[ -n $message ]]; then say "this machine lacks:$message" && exit 1; fi
}

stage() { # VARIABLE MINUTES WORDS COMMAND...: the first time it takes MINUTES; its stdout goes to VARIABLE
  local start=$SECONDS stdout
  number=$((number + 1))
  say "stage $number of $total, about $2 minutes the first time: $3"
  stdout=$("${@:4}")
  printf -v "$1" %s "$stdout"
  say "stage $number of $total: $((SECONDS - start)) s"
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

load_images() {
  local directory made=()
  for directory in "$training_operator" "${kinds[@]}"; do mapfile -t -O "${#made[@]}" made <"$directory/images"; done
  "$HERE/load-images.sh" "${made[@]}" "${images[@]}"
  # Our operator's tag is the same as before, so nothing else has it start the new image.
  "$tools/kubectl" --kubeconfig "$CLUSTER_KUBECONFIG" --namespace rlguard-system delete pods \
    --selector app.kubernetes.io/name=rlguard,app.kubernetes.io/component=operator >/dev/null
}

check_machine
number=0
trap '(($? == 0)) || say "stage $number of $total failed; what is finished is kept, so run this again"' EXIT
total=7 kinds=()
for part in "$@"; do
  if [[ $part == vllm ]]; then total=$((total + 1)); else total=$((total + 2)); fi
  if [[ $part == kuberay ]]; then total=$((total + 1)); fi
done
if public_registry; then public=yes; else public="" total=$((total + 4)); fi
stage tools 4 "kind and kubectl" "$HERE/tools.sh"
if [[ -n $public ]]; then
  say "a public registry responds: kind's own node image, and $PUBLIC_BASE below our images"
  base=$PUBLIC_BASE node=$PUBLIC_NODE config=()
else
  say "no public registry responds: node image and base image are made from Debian packages and Go modules"
  config=(--config "$HERE/node/kind.yaml")
  stage base 1 "base image" "$HERE/base-image.sh"
  stage _ 6 "kube-apiserver and etcd" env --unset=KUBEBUILDER_ASSETS "$ROOT/tests/operator/controlplane/build.sh"
  stage _ 12 "kubelet, containerd and what else runs in the node" "$HERE/node/binaries.sh"
  stage node 4 "node image" "$HERE/node/build.sh"
fi
stage helm 2 "helm" "$ROOT/tests/chart/build.sh" helm
stage training_operator 2 "training-operator" "$HERE/training-operator/build.sh" "$base"
stage _ 9 "RLGuard's images" "$HERE/product-images.sh" "$base"
for part in "$@"; do
  if [[ $part == vllm ]]; then stage "images[guard-vllm]" 10 "guard with vLLM" "$HERE/vllm/build.sh" "$base"; continue; fi
  stage made 4 "$part" "$HERE/kinds/build.sh" "$part"
  kinds+=("$made")
  if [[ $part == kuberay ]]; then stage "images[ray]" 2 "trainer with Ray" "$HERE/ray/build.sh" "${images[trainer]}"; fi
done
stage _ 1 "cluster" "$HERE/create.sh" "$tools/kind" "$node" "${config[@]}"
stage _ 2 "loading images" load_images
stage _ 1 "training-operator in the cluster" "$HERE/training-operator/install.sh" "$tools/kubectl" "$training_operator"
for directory in "${kinds[@]}"; do
  stage _ 1 "${directory##*/} in the cluster" "$HERE/kinds/install.sh" "$tools/kubectl" "$directory"
done
describe
