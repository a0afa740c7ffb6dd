#!/bin/bash
# Every end-to-end test: first those that mind their own namespace, three at a time, because most of their time is
# waiting; then, one by one, those marked `alone`, which take something away from all. RLGUARD_E2E names the file of a
# cluster that is there; else one is made, and deleted after. One of its name that was left behind goes first: up.sh
# would keep it, and what runs in it would take the cores of the tests. RLGUARD_E2E_SHORT leaves out those marked `long`.
# `kinds` or `vllm` as the first argument: the tests of that folder in their place, one by one, on a cluster that has
# what they need, too. Other arguments go to pytest.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$HERE/../.."
declare -A needs=([kinds]="kuberay jobset trainer kueue" [vllm]=vllm)
folder="" parts=()
if [[ -n ${1:-} && -n ${needs[$1]:-} ]]; then
  folder=$1
  read -ra parts <<<"${needs[$1]}"
  shift
fi

status=0
mkdir -p build/e2e

if [[ -z ${RLGUARD_E2E:-} ]]; then
  export RLGUARD_E2E=build/e2e/cluster.json
  "$HERE/cluster/down.sh"
  trap '"$HERE/cluster/down.sh"' EXIT
  "$HERE/cluster/up.sh" "${parts[@]}" >"$RLGUARD_E2E"
fi

run() { # ARGUMENT...: of pytest
  .venv/bin/pytest -q --durations=20 "$@" || status=$?
}
if [[ -n $folder ]]; then
  run "$@" "tests/e2e/$folder"
else
  short=${RLGUARD_E2E_SHORT:+ and not long}
  here=(--ignore=tests/e2e/kinds --ignore=tests/e2e/vllm tests/e2e)
  run -n 3 --maxschedchunk 1 -m "not alone$short" "$@" "${here[@]}"
  run -m "alone$short" "$@" "${here[@]}"
fi

exit "$status"
