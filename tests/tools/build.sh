#!/bin/bash
# Prints the path of actionlint, which checks the workflows of a public CI. It comes from the Go module at the version
# that go.mod pins, once, and is kept in $CACHE: half a minute.
set -euo pipefail
NAME="actionlint"
source "$(dirname "${BASH_SOURCE[0]}")/../go/modules.sh"

build_actionlint() { build actionlint "" "$1/actionlint" github.com/rhysd/actionlint/cmd/actionlint; }

one_at_a_time actionlint
actionlint=$CACHE/actionlint-$(module_digest actionlint)
once "$actionlint" build_actionlint
echo "$actionlint/actionlint"
