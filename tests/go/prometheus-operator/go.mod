module rlguard/tests/prometheus-operator

go 1.24.0

// Only its manifests are used: the CRDs of ServiceMonitor, PodMonitor and PrometheusRule.
require github.com/prometheus-operator/prometheus-operator v0.85.0
