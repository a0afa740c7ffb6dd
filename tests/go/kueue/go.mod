module rlguard/tests/kueue

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh); its CRDs are installed too.
require sigs.k8s.io/kueue v0.11.9
