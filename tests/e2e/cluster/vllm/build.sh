#!/bin/bash
# BASE_IMAGE: prints the tag of an image that is the guard with vLLM's build for CPUs.
set -euo pipefail
NAME="vllm image"
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

image=rlguard-test/guard-vllm:$VERSION
make --no-print-directory -C "$ROOT" image-guard BASE_IMAGE="$1" DOCKER_FLAGS="${DOCKER_BUILD[*]:1}" >&2
docker_build --build-arg GUARD="rlguard/guard:$VERSION" --tag "$image" --file "$HERE/vllm/Dockerfile" "$ROOT/tests/vllm"
echo "$image"
