#!/bin/sh
# Takes the agent off this host: what it does is `vgpu-agent uninstall --help`. Arguments are passed on, e.g.
# --dry-run or --purge.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec "$here/vgpu-agent/vgpu-agent" uninstall "$@"
