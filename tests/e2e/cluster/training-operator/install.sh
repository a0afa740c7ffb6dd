#!/bin/bash
# KUBECTL DIRECTORY: applies what build.sh made, and waits until the operator admits a PyTorchJob.
set -euo pipefail
NAME=training-operator
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

kubectl() { "$kubectl" --kubeconfig "$CLUSTER_KUBECONFIG" "$@"; }

try_a_job() { # the operator makes its webhook's certificate itself, so it answers a little after it is ready
  kubectl create --dry-run=server --filename - <<'JOB' 2>&1
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: probe, namespace: default}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: {spec: {containers: [{name: pytorch, image: none}]}}
JOB
}

kubectl=$1
# Server-side: the CRD of PyTorchJob is too large for the annotation that a client-side apply keeps. --force-conflicts:
# the operator has filled in its Secret and the webhook's CA bundle since the last time.
"$kubectl" kustomize "$2" | kubectl apply --server-side --force-conflicts --filename - >/dev/null
kubectl --namespace kubeflow rollout status deployment/training-operator --timeout 180s >&2
for _ in {1..60}; do
  if said=$(try_a_job); then exit; fi
  sleep 1
done
say "the operator runs, but no PyTorchJob is admitted: $said"
exit 1
