//go:build tools

// Package controlplane pins the Kubernetes API server that the integration tests start.
package controlplane

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
