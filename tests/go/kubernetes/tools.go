//go:build tools

// Package kubernetes pins what the integration tests and the kind node run: one module, so that everything that
// needs client-go is compiled against the same one, once.
package kubernetes

import (
	_ "github.com/rancher/local-path-provisioner"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
