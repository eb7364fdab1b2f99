#!/bin/sh
# Takes the agent off this host: what it does is `vgpu-agent uninstall --help`. Arguments are passed on, e.g.
# --dry-run or --purge.
set -eu
own=$(readlink -f -- "$0")
here=$(CDPATH='' cd -- "$(dirname -- "$own")" && pwd)
exec "$here/vgpu-agent/vgpu-agent" uninstall "$@"
