//go:build tools

// Package kubernetes pins the API server of another minor for `make test-kubernetes`.
package kubernetes

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
