#!/bin/sh
# Installs the agent that lies beside this file on this host: what it does is `vgpu-agent install --help`.
# Arguments are passed on, e.g. --dry-run. Needs no network.
set -eu
refuse() {
    echo "install.sh: $1" >&2
    exit 1
}
own=$(readlink -f -- "$0") || refuse "$0 leads nowhere; run the install.sh of the unpacked release"
here=$(CDPATH='' cd -- "$(dirname -- "$own")" && pwd)
program=$here/vgpu-agent/vgpu-agent

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

# Everything below this folder is installed, so it has to be in the list. No find: it may not be there.
newline='
'
check_listed() {
    for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ -d "$path" ] && [ ! -L "$path" ]; then
            check_listed "$path"
        elif [ -e "$path" ] || [ -L "$path" ]; then
            case $listed in
            *"$newline$path$newline"*) ;;
            *) refuse "$path is no file of this release; unpack it anew, in an empty directory" ;;
            esac
        fi
    done
}
cd "$here"
if [ -f SHA256SUMS ]; then
    sha256sum --check --quiet --strict SHA256SUMS ||
        refuse "files of this release are damaged; unpack it anew, and see that it arrived whole"
    listed=$newline
    while read -r _ name; do
        listed=$listed${name#\*}$newline
    done <SHA256SUMS
    check_listed vgpu-agent
else
    echo "install.sh: $here has no SHA256SUMS, so nobody checks whether its files arrived whole" >&2
fi
cd - >/dev/null

code=0
"$program" version >/dev/null 2>&1 || code=$?
[ "$code" -ne 126 ] ||
    refuse "$program cannot be executed; if it lies where nothing can be (mounted noexec), copy the release elsewhere"

exec "$program" install "$@"
