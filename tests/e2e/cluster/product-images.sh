#!/bin/bash
# BASE_IMAGE: builds RLGuard's images from the working tree. Docker's layer cache makes a second time quick. The
# large ones come one after the other, so that the second finds the layer with torch that both share.
set -euo pipefail
NAME="product images"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

make --no-print-directory -C "$ROOT" image-operator image-guard-hf image-trainer \
  BASE_IMAGE="$1" DOCKER_FLAGS="${DOCKER_BUILD[*]:1}" >&2
