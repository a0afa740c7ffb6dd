#!/bin/bash
# KUBECTL DIRECTORY: applies what build.sh made, and waits until the controller runs.
set -euo pipefail
NAME=kinds
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

kubectl() { "$kubectl" --kubeconfig "$CLUSTER_KUBECONFIG" "$@"; }

kubectl=$1
rendered=$("$1" kustomize "$2")
namespace=$(awk '/^kind: Namespace/ {inside = 1} inside && /^  name:/ {print $2; exit}' <<<"$rendered")
# Server-side, as their CRDs are too large for the annotation of a client-side apply. --force-conflicts: those that make
# certificates have filled them in since the last time.
kubectl apply --server-side --force-conflicts --filename - <<<"$rendered" >/dev/null
kubectl --namespace "$namespace" rollout status deployment --timeout 180s >&2
