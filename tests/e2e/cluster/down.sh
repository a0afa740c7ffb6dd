#!/bin/bash
# Deletes the cluster of up.sh; what was built stays for the next one. Needs nothing but Docker.
set -euo pipefail
NAME=e2e
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

nodes | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
rm -f "$CLUSTER_KUBECONFIG"
