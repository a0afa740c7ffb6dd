#!/bin/bash
# TEST...: runs these tests on a kind cluster: first those that mind their own namespace, WORKERS (2) at a time, because
# most of their time is waiting; then, one by one, those marked `alone`, which take something away from all.
#
# RLGUARD_E2E names the file of a cluster that is there; else one is made, and deleted after. One of its name that was
# left behind goes first: up.sh would keep it, and what runs in it would take the cores of the tests. PARTS is what the
# cluster gets, too (see up.sh).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$HERE/../.."

if [[ -z ${RLGUARD_E2E:-} ]]; then
  export RLGUARD_E2E=build/e2e/cluster.json
  mkdir -p build/e2e
  "$HERE/cluster/down.sh"
  trap '"$HERE/cluster/down.sh"' EXIT
  read -ra parts <<<"${PARTS:-}"
  "$HERE/cluster/up.sh" "${parts[@]}" >"$RLGUARD_E2E"
fi

status=0
run() { # ARGUMENT... of pytest, whose 5 means that no test has this marker
  local code=0
  .venv/bin/pytest -q --durations=20 "$@" || code=$?
  ((code == 0 || code == 5)) || status=$code
}
run -n "${WORKERS:-2}" --maxschedchunk 1 -m "not alone" "$@"
run -m alone "$@"
exit "$status"
