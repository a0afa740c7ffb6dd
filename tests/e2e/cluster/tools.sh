#!/bin/bash
# Prints the directory with kind and kubectl.
set -euo pipefail
NAME="cluster tools"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

make_tools() {
  build_in_place kind sigs.k8s.io/kind "" "$1/kind" . &&
    build kubernetes "$(kubernetes_flags)" "$1/" k8s.io/kubernetes/cmd/kubectl
}

one_at_a_time cluster-tools
tools=$CACHE/cluster-tools-$(module_digest kind)-$(module_digest kubernetes)
once "$tools" make_tools
echo "$tools"
