module rlguard/tests/training-operator

go 1.24.0

// Built from its own sources, with its own go.sum (build_in_place in ../modules.sh); its manifests are installed too.
require github.com/kubeflow/training-operator v1.8.1
