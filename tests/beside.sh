#!/bin/bash
# BESIDE COMMAND...: runs COMMAND, and beside it BESIDE with what COMMAND leaves of the cores, for many tests wait most of
# their time. What BESIDE said comes last. Fails if one of both does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build
log=build/beside.log

# A session of its own: where the scheduler shares the cores between sessions, it minds the niceness of each as a whole.
setsid bash -c '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 bash -c "$1"' - "$1" >"$log" 2>&1 &
beside=$!
trap 'kill -- "-$beside" 2>/dev/null || true' EXIT
shift

status=0
"$@" || status=$?
# Now it has the cores for itself.
{ echo 0 >"/proc/$beside/autogroup"; renice -n 0 -g "$beside"; } >/dev/null 2>&1 || true
wait "$beside" || status=$?
cat "$log"
exit "$status"
