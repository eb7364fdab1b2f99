"""A demo of the release that is killed: what is left of it on the host, be it files or processes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# $1: a program, $2: a signal. In namespaces of its own, whose process 1 this shell is: what is
# killed is one process, as a person or the OOM killer does it, and not a whole container.
SCRIPT = """
programs=$(pwd); mount --bind "$programs" /srv; cd /
for place in /tmp /var/tmp /dev/shm /run /var/lib; do mount -t tmpfs -o mode=1777 none $place; done
"/srv/$1" demo >/var/lib/told 2>&1 &
demo=$!
until grep -qs "kubelet" /var/lib/told; do kill -0 $demo; sleep 0.1; done
kill -$2 $demo
wait $demo && code=0 || code=$?
for _ in $(seq 100); do
    left=$(find /tmp /var/tmp /dev/shm /run -mindepth 1 ! -path "/run/mount*")  # of mount(8)
    running=$(readlink /proc/[0-9]*/exe | grep "^/srv/\\|^/var/lib/") || :
    [ -n "$left$running" ] || break
    sleep 0.1
done
echo "code $code left $left running $running"
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root"),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        pytest.param("KILL", 128 + 9, id="SIGKILL"),
        pytest.param("TERM", 130, id="SIGTERM"),
        pytest.param("HUP", 130, id="SIGHUP"),
    ],
)
@pytest.mark.parametrize("shape", ["single file", "folder"])
def test_it_leaves_nothing(
    single_file: Path, frozen_folder: Path, tmp_path: Path, shape: str, how: str, code: int
) -> None:
    if shape == "folder":
        shutil.copytree(frozen_folder, tmp_path / "folder")
        program = "folder/vgpu-agent"
    else:
        shutil.copy(single_file, tmp_path / "single")
        program = "single"
    own = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc")

    done = subprocess.run(
        [*own, "--kill-child", "sh", "-ec", SCRIPT, "sh", program, how],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == f"code {code} left  running \n", done.stderr
