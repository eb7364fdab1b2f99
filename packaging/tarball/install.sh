#!/bin/sh
# Installs the agent that lies beside this file on this host: what it does is `vgpu-agent install --help`.
# Arguments are passed on, e.g. --dry-run. Needs no network.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
refuse() {
    echo "install.sh: $1" >&2
    exit 1
}

machine=$(uname -m)
[ "$machine" = x86_64 ] || refuse "this is a $machine host, and the agent in this release is for x86_64"

libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=
case $libc in
"glibc "[0-9]*.[0-9]*) ;;
*) refuse "this host has no glibc, which the agent and NVIDIA's driver need" ;;
esac
libc=${libc#glibc }
minor=${libc#*.}
[ "${libc%%.*}" -gt 2 ] || [ "${minor%%[!0-9]*}" -ge 28 ] ||
    refuse "this host has glibc $libc, and the agent needs 2.28 or newer"

if [ -f "$here/SHA256SUMS" ]; then
    (cd "$here" && sha256sum --check --quiet --strict SHA256SUMS) ||
        refuse "files of this release are damaged; unpack it anew, and see that it arrived whole"
fi

exec "$here/vgpu-agent/vgpu-agent" install "$@"
