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
# Hard links: a second copy of torch would make the stage twice as large, on disk and in time.
find /opt/rlguard -cnewer /tmp/stamp ! -type d -print0 | xargs -0 cp --link --no-dereference --parents --target-directory=/layer
