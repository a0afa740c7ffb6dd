#!/bin/bash
# Prints the Debian packages that a cluster needs and this machine lacks, in one line.
set -euo pipefail
NAME=missing
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=()
need() { # COMMAND [PACKAGE]
  command -v "$1" >/dev/null || packages+=("${2:-$1}")
}

if docker info >/dev/null 2>&1; then
  if public_registry; then exit; fi
elif ! command -v docker >/dev/null || ! command -v dockerd >/dev/null; then
  packages+=(docker.io)
fi
# Without a public registry the node image is made here; Docker needs the last three.
need debootstrap
need gcc
[[ -e /usr/include/stdlib.h ]] || packages+=(libc6-dev)
need iptables
need runc
need jq
echo "${packages[*]}"
