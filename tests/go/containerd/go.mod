module rlguard/tests/containerd

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh).
require github.com/containerd/containerd/v2 v2.3.4
