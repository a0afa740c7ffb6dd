#!/bin/bash
# TRAINER: prints the tag of an image that is that trainer's image with Ray in it.
set -euo pipefail
NAME="ray image"
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

image=rlguard-test/ray:$VERSION
docker_build --build-arg TRAINER="$1" --tag "$image" "$HERE/ray"
echo "$image"
