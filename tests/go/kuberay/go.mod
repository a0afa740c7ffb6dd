module rlguard/tests/kuberay

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh); its CRDs are installed too.
require github.com/ray-project/kuberay/ray-operator v1.5.1
