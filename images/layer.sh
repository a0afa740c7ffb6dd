#!/bin/sh
# layer.sh REQUIREMENT...: install into /opt/rlguard what is asked for, at the versions and hashes of
# requirements.lock, and leave in /layer exactly the files that this call wrote: one layer of an image.
set -eu
rm -rf /layer
mkdir -p /layer
touch /tmp/stamp
[ -d /opt/rlguard ] || "$UV" venv --quiet --python /usr/bin/python3 /opt/rlguard
"$UV" pip install --quiet --constraint requirements.lock "$@"
rm -f /opt/rlguard/bin/rlguard # the command line is not part of an image
find /opt/rlguard -cnewer /tmp/stamp ! -type d -print0 | tar --null --files-from=- -cf - 2>/dev/null | tar -C /layer -xf -
