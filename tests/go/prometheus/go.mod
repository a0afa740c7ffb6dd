module rlguard/tests/prometheus

go 1.26.0

// Only promtool is built, with the versions that it pins itself: it proves the chart's alerts.
require github.com/prometheus/prometheus v0.313.5
