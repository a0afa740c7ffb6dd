# shellcheck shell=bash disable=SC2034
# Sourced by every script of this folder: names, places and what more than one of them does. The caller sets NAME.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
source "$ROOT/tests/go/modules.sh"

CLUSTER=${RLGUARD_E2E_CLUSTER:-rlguard-e2e}
CLUSTER_KUBECONFIG=$CACHE/clusters/$CLUSTER.kubeconfig
VERSION=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$ROOT/rlguard/core/_version.py")

# Docker of Debian has no buildx; without it only the classic builder works.
if ! docker buildx version >/dev/null 2>&1; then export DOCKER_BUILDKIT=0; fi
# Packages come through the machine's own network: a bridge inside a container that runs CI often leads nowhere.
DOCKER_BUILD=(build --quiet --network=host)

docker_build() { # says something only if it fails
  local said
  said=$(docker "${DOCKER_BUILD[@]}" "$@" 2>&1) || { echo "$said" >&2; return 1; }
}

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

PUBLIC_BASE=debian:bookworm-slim
public_registry() { have_image "$PUBLIC_BASE" || timeout 60 docker pull --quiet "$PUBLIC_BASE" >/dev/null 2>&1; }

nodes() { docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$CLUSTER"; }
