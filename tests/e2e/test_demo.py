"""`vgpu-agent demo`: what it proves, what it says when it cannot, and that it cleans up."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.version import VERSION
from tests.e2e.conftest import COMMAND, FROZEN
from tests.interrupt import skip_if_ignored
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
STEPS = [
    "node registered",
    "pods placed",
    "every container has its share",
    "memory limit enforced",
    "core limit enforced",
    "use shown",
    "limit changed live",
    "bypass caught",
    "bookkeeping finished",
    "kubelet restart survived",
    "sick GPU taken out",
    "GPU recovered",
    "clean stop",
]
MIG_STEPS = [
    "node registered",
    "pods placed",
    "instances where they were decided",
    "every container has its instance",
    "memory limit enforced",
    "use shown",
    "live limit refused",
    "killed agent has its instances back",
    "kubelet restart survived",
    "nothing left behind",
    "clean stop",
]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where the demo puts its node; a short path, because unix sockets live in it."""
    path = Path(tempfile.mkdtemp(prefix="vgpu-"))
    yield path
    shutil.rmtree(path)


def start(scratch: Path, *flags: str, **environ: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "demo", *flags],
        env={**os.environ, "TMPDIR": str(scratch), **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("mode", ["hami", "volcano"])
def test_it_proves_the_main_job_to_programs(scratch: Path, mode: str) -> None:
    demo = start(scratch, "--json", "--mode", mode)
    out, err = demo.communicate(timeout=250)
    answer = json.loads(out)
    assert [check["name"] for check in answer["checks"]] == STEPS
    assert [check for check in answer["checks"] if not check["passed"]] == []
    assert (demo.returncode, answer["passed"], err) == (0, True, "")
    assert list(scratch.iterdir()) == []


def test_it_proves_that_gpus_are_divided(scratch: Path) -> None:
    demo = start(scratch, "--json", "--mode", "mig")
    out, err = demo.communicate(timeout=250)
    answer = json.loads(out)
    assert [check for check in answer["checks"] if not check["passed"]] == []
    assert [check["name"] for check in answer["checks"]] == MIG_STEPS
    assert (demo.returncode, answer["passed"], err) == (0, True, "")
    assert list(scratch.iterdir()) == []


def test_it_shows_people_gpus_containers_and_what_was_proved(scratch: Path) -> None:
    demo = start(scratch)
    out, _ = demo.communicate(timeout=250)
    assert demo.returncode == 0
    for text in ("memory used", "limit MiB", "refused", *STEPS, "13 of 13 checks passed."):
        assert text in out
    assert "\x1b" not in out, "a pipe is no terminal"
    readme = (ROOT / "README.md").read_text()
    assert f"vgpu-agent {VERSION}  seen" in readme
    assert drawn(of_top(out)) == drawn(readme[readme.index("sim-node  2 GPUs") :].split("```")[0])


def of_top(out: str) -> str:
    """The part of the demo's output that is `vgpu-agent top --once`: until the next check."""
    return re.split(r"^ *\d+\.\d s  ", out[out.index("sim-node  2 GPUs") :], flags=re.MULTILINE)[0]


def drawn(text: str) -> list[str]:
    """What is shown of whom, without figures, bars and how wide the columns are."""
    plain = re.sub(r"[█░]+", "=", text)
    plain = re.sub(r"\b\d[\d.]*( [KMG]iB)?\b", "#", plain)
    plain = re.sub(r"never|# s ago|(?<= )-(?= )", "#", plain)
    plain = plain.replace(" +# %", "")  # lent
    return [re.sub(r" +", " ", line).rstrip() for line in plain.strip().splitlines()]


CHANGED_AGENT = """
import os, sys
if "run" in sys.orig_argv:  # the agent, not the demo
    os.environ["VGPU_REGISTER_FORMAT"] = "csv9"
"""


SLOW_DEMO = """
import sys, time
if "demo" in sys.orig_argv:
    from agent.sim.driver import SimDriver
    xid = SimDriver.xid
    def slowly(*arguments):
        xid(*arguments)
        time.sleep(4)
    SimDriver.xid = slowly
"""


@pytest.mark.skipif(bool(FROZEN), reason="the release takes no modules from outside")
def test_a_sick_gpu_waits_for_a_machine_that_is_slow(scratch: Path, tmp_path: Path) -> None:
    """The demo's agent takes a GPU back after 1.5 s of clean probes; who looks may come later."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_DEMO)
    demo = start(scratch, "--json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    out, _ = demo.communicate(timeout=250)
    assert [check for check in json.loads(out)["checks"] if not check["passed"]] == []


@pytest.mark.skipif(bool(FROZEN), reason="the release takes no modules from outside")
def test_what_is_not_proved_is_said_and_is_a_failure(scratch: Path, tmp_path: Path) -> None:
    """An agent that writes for old schedulers is not understood by the one of the demo."""
    (tmp_path / "sitecustomize.py").write_text(CHANGED_AGENT)
    demo = start(scratch, "--json", PYTHONPATH=str(tmp_path))
    out, err = demo.communicate(timeout=250)
    answer = json.loads(out)
    assert (demo.returncode, answer["passed"]) == (1, False)
    assert "the scheduler reads 0 GPUs instead of 2" in answer["checks"][-1]["detail"]
    assert "agent_starting" in err, "the end of the agent's log helps to find out why"
    assert list(scratch.iterdir()) == []


def test_what_the_shell_has_exported_does_not_matter(scratch: Path) -> None:
    """Proxies and settings of somebody's shell are not this node's."""
    exported = {
        "HTTP_PROXY": "http://127.0.0.1:1",
        "VGPU_REGISTER_FORMAT": "csv9",
        "CONFIG_FILE": "/x",
    }
    demo = start(scratch, "--json", **exported)
    out, _ = demo.communicate(timeout=250)
    assert (demo.returncode, json.loads(out)["passed"]) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_when_it_is_interrupted_nothing_is_left_behind(scratch: Path, number: int) -> None:
    skip_if_ignored(number)
    demo = start(scratch)
    assert demo.stdout is not None
    while "pods placed" not in (line := demo.stdout.readline()):
        assert line, "it has ended by itself"
    agents = running_in(scratch)
    assert agents
    demo.send_signal(number)
    _, err = demo.communicate(timeout=250)
    assert (demo.returncode, err) == (130, "vgpu-agent: demo interrupted\n")
    assert list(scratch.iterdir()) == []
    eventually(lambda: not running_in(scratch), what="all its processes have ended")


def running_in(scratch: Path) -> list[str]:
    """Command lines of the processes that were started with files of this directory."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(scratch) in line:
            lines.append(line)
    return lines


def test_without_the_built_libraries_it_says_how_to_get_them(scratch: Path) -> None:
    demo = start(scratch, VGPU_SIM_LIBRARY_DIR="/nowhere")
    _, err = demo.communicate(timeout=250)
    assert demo.returncode == 1
    assert err.startswith("vgpu-agent: the simulated driver is not built")
    assert err.count("\n") == 1
    assert list(scratch.iterdir()) == []
