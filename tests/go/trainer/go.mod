module rlguard/tests/trainer

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh); its CRDs are installed too.
require github.com/kubeflow/trainer/v2 v2.2.0
