//go:build tools

// Package kustomize pins the kustomize that the overlays' tests run.
package kustomize

import _ "sigs.k8s.io/kustomize/kustomize/v5"
