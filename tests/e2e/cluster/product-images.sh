#!/bin/bash
# BASE_IMAGE: builds RLGuard's images from the working tree. Docker's layer cache makes a second time quick. The
# large ones come one after the other, so that the second finds the layer with torch that both share.
set -euo pipefail
NAME="product images"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The classic builder's cache is its images. So each stage has a name here, and what a build replaces is deleted: left
# behind, a build takes 3 GB, and a day of them fills the disk.
declare -A stages=([operator-layer]=guard [guard-layer]=guard [guard]=guard [guard-hf-layer]=guard [trainer-layer]=trainer)
stage_image() { echo "rlguard-test/stage:$1"; }
names=("rlguard/"{operator,guard-hf,trainer}":$VERSION")
for stage in "${!stages[@]}"; do names+=("$(stage_image "$stage")"); done
ids() { docker image inspect --format '{{.Id}}' "${names[@]}" 2>/dev/null | sort -u; }

before=$(ids || true) # some may not be there
make --no-print-directory -C "$ROOT" image-operator image-guard-hf image-trainer \
  BASE_IMAGE="$1" DOCKER_FLAGS="${DOCKER_BUILD[*]:1}" >&2
if [[ ${DOCKER_BUILDKIT:-} == 0 ]]; then
  for stage in "${!stages[@]}"; do
    docker_build --build-arg "BASE_IMAGE=$1" --file "$ROOT/Dockerfile.${stages[$stage]}" --target "$stage" \
      --tag "$(stage_image "$stage")" "$ROOT"
  done
fi
comm -23 <(echo "$before") <(ids) | xargs --no-run-if-empty docker rmi >/dev/null
