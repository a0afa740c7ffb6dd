#!/bin/bash
# Prints the tag of a node image for kind that is made from Debian packages and Go modules alone, where there is no
# registry to get one from.
set -euo pipefail
shopt -s inherit_errexit
NAME="node image"
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

install_binaries() { # ROOT
  install -D --target-directory "$1/usr/bin" "$binaries"/{kubeadm,kubelet} "$tools/kubectl"
  install -D --target-directory "$1/usr/local/bin" "$binaries"/{containerd,ctr,containerd-shim-runc-v2}
}

install_kind_files() { # ROOT: the files that kind's own node image has
  local files=$kind/images/base/files
  mkdir -p "$1/kind/manifests"
  cp -r "$files"/{etc,kind} "$1/"
  install -D --target-directory "$1/usr/local/bin" "$files"/usr/local/bin/*
  chmod -R u=rwX,go=rX "$1"
  chmod 755 "$1"/kind/bin/*
  echo -n "$version" >"$1/kind/version"
}

# shellcheck disable=SC2016 # the backquotes and the $ are Go's and sed's
storage_manifest() { # kind's default storage; it has the manifest in a Go string only
  sed -n '/^const defaultStorageManifest = `$/,/^`$/p' "$kind/pkg/build/nodeimage/const_storage.go" |
    sed '1d; $d; s#` + storageProvisionerImage + `#kind.local/local-path-provisioner:v1#
         s#` + storageHelperImage + `#kind.local/local-path-helper:v1#'
}

make_image() {
  context=$(mktemp -d "$CACHE/node-image.XXXXXX")
  trap 'rm -rf "$context"' EXIT
  local root=$context/root
  mkdir "$root"
  install_kind_files "$root"
  install_binaries "$root"
  install -m 644 "$HERE/node/default-cni.yaml" "$root/kind/manifests/"
  storage_manifest >"$root/kind/manifests/default-storage.yaml"
  "$HERE/node/addons.sh" "$context/images.tar" "$binaries" "$control_plane" "$debian"
  install --target-directory "$context" "$HERE/node/import-images.sh" "$HERE/node/Dockerfile"
  docker_build --build-arg DEBIAN="$debian" --build-arg PAUSE="$pause" --tag "$image" "$context"
}

version=$(pinned kubernetes k8s.io/kubernetes)
debian=$("$HERE/debian.sh")
tools=$("$HERE/tools.sh")
# Whatever else the integration tests may use: in the node all of Kubernetes has one version.
control_plane=$(env --unset=KUBEBUILDER_ASSETS "$ROOT/tests/operator/controlplane/build.sh")
control_plane=${control_plane%%$'\n'*}
binaries=$("$HERE/node/binaries.sh")
pause=$("$binaries/kubeadm" config images list --image-repository kind.local --kubernetes-version "$version" |
  grep /pause:)

one_at_a_time node-image
key=$(printf '%s\n' "$debian" "$tools" "$control_plane" "$binaries" "$(digest "$HERE/node")" | sha256sum | cut -c1-12)
image=rlguard-test/node:$version-$key
if ! have_image "$image"; then
  find_go
  kind=$(module_dir kind sigs.k8s.io/kind)
  make_image
fi
echo "$image"
