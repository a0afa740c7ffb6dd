#!/bin/bash
# Prints the tag of a minimal Debian image, made with debootstrap where no registry has one for us.
# bookworm, because its systemd is the last that still takes cgroup v1, for the node image.
set -euo pipefail
NAME="debian image"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
MIRRORS=/etc/apt/sources.list.d/debian.sources

make_image() {
  local log=$CACHE/debootstrap.log
  root=$(mktemp -d "$CACHE/debian.XXXXXX")
  trap 'rm -rf "$root"' EXIT
  say "making $image (its log: $log)"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; say "debootstrap failed; it needs root and the Debian mirror"; exit 1; }
  # debootstrap's own list has no security updates; the machine's has, if it is a bookworm, too.
  if grep -qs bookworm "$MIRRORS"; then
    cp "$MIRRORS" "$root$MIRRORS"
    rm "$root/etc/apt/sources.list"
  fi
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/* "$root"/usr/share/{doc,info,locale,man}/*
  tar --directory "$root" --numeric-owner --create . | docker import --change 'CMD ["/bin/bash"]' - "$image" >/dev/null
}

one_at_a_time debian-image
image=rlguard-test/debian:bookworm-$(digest "$HERE/debian.sh")
have_image "$image" || make_image
echo "$image"
