"""The sockets of a running agent, asked by a process of another user."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker
from tests.faults.conftest import make_node
from tests.waiting import eventually

__all__ = ["make_node"]
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else"),
]

NOBODY, DAEMON = 65534, 1
DENIED = "Permission denied"
# Is in the directory before it becomes somebody else: no mode above the sockets is in its way.
ASK = """
import json, os, socket, sys
uid, gid, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.chdir(place)
os.setgroups([])
os.setgid(gid)
os.setuid(uid)
answers = {}
for name in ("control.sock", "read.sock"):
    for what in ("GET /healthz", "POST /v1/limits"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            try:
                sock.connect(name)
                sock.sendall(f"{what} HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{{}}".encode())
                answer = sock.recv(65536).decode().split("\\r\\n")
                answers[f"{name}: {what}"] = answer[0].split(" ")[1] + " " + answer[-1].strip()
            except OSError as error:
                answers[f"{name}: {what}"] = error.strerror
print(json.dumps(answers))
"""


def asked_as(node: SimNode, uid: int, gid: int) -> list[str]:
    """What control.sock says to a question and to a change, then what read.sock says."""
    run = node.root / "run"
    eventually(lambda: (run / "read.sock").exists() and (run / "control.sock").exists())
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(uid), str(gid), str(run)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return list(json.loads(done.stdout).values())


def test_another_user_gets_into_neither_socket(make_node: NodeMaker) -> None:
    node = make_node("--socket-group", str(DAEMON))
    limits = sorted((node.root / "host").rglob("*"))
    assert asked_as(node, NOBODY, NOBODY) == [DENIED] * 4
    *control, question, change = asked_as(node, NOBODY, DAEMON)
    assert control == [DENIED] * 2
    assert question.startswith("200 ")
    assert change.startswith("405 ")
    for name in ("control.sock", "read.sock"):  # and if somebody had opened them to all
        (node.root / "run" / name).chmod(0o666)
    told = f"403 user {NOBODY} may change nothing here; do it as root"
    assert asked_as(node, NOBODY, NOBODY)[:2] == [told] * 2
    assert asked_as(node, 0, 0)[0].startswith("200 ")
    assert sorted((node.root / "host").rglob("*")) == limits


# The same: what is above the host's directory is the test's, and closed.
TRY = """
import json, os, sys
place, paths = sys.argv[1], sys.argv[2:]
os.chdir(place)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
said = {}
for path in paths:
    try:
        said[path] = os.stat(path).st_mode
    except OSError as error:
        said[path] = error.strerror
print(json.dumps(said))
"""


def test_what_root_of_a_container_leaves_is_out_of_another_users_reach(
    make_node: NodeMaker,
) -> None:
    """A set-uid program of root's, or a disk's device node: on the host it would be all of it."""
    node = make_node()
    node.stop_agent()
    host = node.root / "host"
    node.start_agent("--vgpulock-dir", str(host / "vgpu" / "vgpulock"))
    node.wait("readiness", node.ready)
    admitted = node.run_pod("pod", [Ask(memory_mib=100)]).admitted
    assert admitted.ok, admitted.message
    mounts = {m.container_path: m for m in admitted.containers["main"].mounts}
    left = []
    for inside in ("/usr/local/vgpu", "/tmp/vgpulock"):
        assert not mounts[inside].read_only
        program = Path(mounts[inside].host_path) / "shell"
        shutil.copy("/bin/true", program)
        program.chmod(0o4755)
        left.append(str(program.relative_to(host)))
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(host), *left],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == dict.fromkeys(left, DENIED)
