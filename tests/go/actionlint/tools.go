//go:build tools

// Package actionlint pins the actionlint that checks the workflows of a public CI.
package actionlint

import _ "github.com/rhysd/actionlint/cmd/actionlint"
