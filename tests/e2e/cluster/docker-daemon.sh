#!/bin/bash
# start: a Docker daemon, unless one answers. stop: ends the one that `start` started, and no other. As root.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=/run/rlguard-dockerd
LOG=/var/log/rlguard-dockerd.log

answers() { docker info >/dev/null 2>&1; }

capabilities_missing() { # in the bounding set, of those that the kernel has
  local last bounding
  last=$(</proc/sys/kernel/cap_last_cap)
  bounding=$((16#$(awk '/^CapBnd/ {print $2}' /proc/self/status)))
  ((bounding != (1 << (last + 1)) - 1))
}

start() {
  if answers; then return; fi
  local flags=(--pidfile "$STATE")
  if capabilities_missing; then
    flags+=(--add-runtime "boundcaps=$HERE/runc-boundcaps" --default-runtime boundcaps)
  fi
  # Debian's own containerd comes with Docker: a PATH with another one first, such as the node's, breaks the daemon.
  PATH=/usr/sbin:/usr/bin:/sbin:/bin setsid dockerd "${flags[@]}" >"$LOG" 2>&1 </dev/null 9>&- &
  for _ in {1..60}; do
    if answers; then return; fi
    sleep 0.5
  done
  tail -n 30 "$LOG" >&2
  echo "docker-daemon: dockerd does not come up; the end of its log, $LOG, is above" >&2
  exit 1
}

stop() {
  if [[ ! -e $STATE ]]; then return; fi
  local pid
  pid=$(<"$STATE")
  kill "$pid"
  tail --pid="$pid" --follow /dev/null
}

case ${1:-} in
  start | stop) "$1" ;;
  *) echo "usage: docker-daemon.sh start|stop" >&2; exit 2 ;;
esac
