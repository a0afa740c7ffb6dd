#!/bin/bash
# Prints the tag of the image to build ours from: Debian, and the certificate authorities that this machine trusts.
# A build inside a container does not know the machine's own authority, and pip and uv bring their own list: so the
# bundle goes in, and the variables that make them use it.
set -euo pipefail
NAME="base image"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
debian=$("$HERE/debian.sh")
if [[ ! -r $bundle ]]; then echo "$debian"; exit; fi

image=rlguard-test/base:$(digest "$bundle" "$HERE"/{base-image,debian}.sh)
if ! have_image "$image"; then
  context=$(mktemp -d)
  trap 'rm -rf "$context"' EXIT
  install -m 644 "$bundle" "$context/site-ca.pem"
  docker_build --tag "$image" --file - "$context" <<DOCKERFILE
FROM $debian
COPY site-ca.pem /etc/ssl/site-ca.pem
ENV SSL_CERT_FILE=/etc/ssl/site-ca.pem PIP_CERT=/etc/ssl/site-ca.pem REQUESTS_CA_BUNDLE=/etc/ssl/site-ca.pem
DOCKERFILE
fi
echo "$image"
