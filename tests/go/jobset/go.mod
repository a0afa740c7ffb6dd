module rlguard/tests/jobset

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh); its CRD is installed too.
require sigs.k8s.io/jobset v0.11.1
