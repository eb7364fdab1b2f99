"""One agent takes the place of another: which of the hook's files stay."""

import sys
from pathlib import Path

import pytest

from agent.adapters.hook_files import FIRST_PID_NAMESPACE
from agent.sim.node import Ask, SimNode
from agent.version import VERSION
from tests.built_hook import ROOT
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import up
from tests.waiting import eventually

UNWANTED = "libvgpu.so.0.0.1-0123456789abcdef"
UNFINISHED = f".{UNWANTED}.77.0a1b2c3d"
HASTY = (  # an agent of another version that looks often and waits for nobody
    "import sys\n"
    "sys.path.insert(0, sys.argv.pop(1))\n"
    "import agent.version\n"
    "agent.version.VERSION = open(sys.argv.pop(1)).read()\n"
    "from agent.services import hook_gc, hook_install\n"
    "hook_install.EVERY_S = 0.5\n"
    "hook_gc.HookGc.__init__.__kwdefaults__['after_s'] = 0\n"
    "from agent.cli import main\n"
    "sys.exit(main(sys.argv[1:]))\n"
)


def start(node: SimNode, proc: Path) -> None:
    node.start_agent("--host-proc", str(proc))
    up(node, 20)


@pytest.mark.parametrize(
    "version", [pytest.param("9.9", id="up"), pytest.param("0.0.1", id="down")]
)
def test_what_a_running_pod_was_given_stays(
    make_node: NodeMaker, version: str, tmp_path: Path
) -> None:
    installed = tmp_path / "version"
    installed.write_text(VERSION)
    command = [sys.executable, "-c", HASTY, str(ROOT), str(installed)]
    node = make_node(started=False, command=command)
    (tmp_path / "1" / "ns").mkdir(parents=True)
    (tmp_path / "1" / "ns" / "pid").symlink_to(FIRST_PID_NAMESPACE)
    vgpu = node.root / "host" / "vgpu"
    start(node, tmp_path)
    grant = node.run_pod("pod", [Ask()]).admitted.containers["main"]
    (given,) = (Path(m.host_path) for m in grant.mounts if m.container_path.endswith("/libvgpu.so"))
    node.stop_agent()
    for name in (UNWANTED, UNFINISHED):
        (vgpu / name).write_bytes(b"x")
    installed.write_text(version)
    start(node, tmp_path)
    eventually(lambda: not (vgpu / UNWANTED).exists() and not (vgpu / UNFINISHED).exists())
    now = given.name.replace(f".{VERSION}-", f".{version}-")
    assert {path.name for path in vgpu.glob("libvgpu.so.*")} == {given.name, now}
    eventually(lambda: node.log_text().count("hook_file_deleted") == 2)
