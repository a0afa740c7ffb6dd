module rlguard/controlplane/training-operator

go 1.24.0

// Only its manifests are used: the CRD of PyTorchJob that the integration tests install.
require github.com/kubeflow/training-operator v1.8.1
