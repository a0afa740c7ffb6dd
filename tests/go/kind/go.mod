module rlguard/tests/kind

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh).
require sigs.k8s.io/kind v0.33.0
