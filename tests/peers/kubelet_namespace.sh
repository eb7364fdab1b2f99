#!/bin/sh
# Runs a kubelet so that it cannot change the machine it runs on: usage STATE_DIRECTORY COMMAND...
# Must be the first program in a mount namespace of its own (unshare --mount --propagation private).
set -eu
state=$1
shift

# A kubelet sets these knobs at start and refuses to run when it cannot; it gets files instead.
mkdir -p "$state/knobs"
for knob in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    [ -e "/proc/sys/$knob" ] || continue
    copy=$state/knobs/$(echo "$knob" | tr / .)
    cat "/proc/sys/$knob" >"$copy"
    mount --bind "$copy" "/proc/sys/$knob"
done

# A node whose paths matter has files of its own there (see node_layouts.py); each lies in the state.
for part in etc run var/lib; do
    if [ -d "$state/host/$part" ]; then
        mount --bind "$state/host/$part" "/$part"
    fi
done

# Kubelet 1.20 puts the device plugins' sockets in /var/lib/kubelet whatever its --root-dir is.
if [ ! -d /var/lib/kubelet ]; then
    mount -t tmpfs -o size=1m tmpfs /var/lib
    mkdir /var/lib/kubelet
fi
mount --bind "$state/kubelet" /var/lib/kubelet
mount -t tmpfs -o size=64m tmpfs /var/log

# All the rest of the machine is read-only.
mount --bind "$state" "$state"
mount -o remount,bind,ro /

exec "$@"
