"""`vgpu-agent demo --mode slices` and `nvidia`: the stories without scheduler and API server."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND, FROZEN

ROOT = Path(__file__).resolve().parents[2]
SLICES_STEPS = [
    "node registered",
    "equal slices add up",
    "named sizes offered",
    "three containers have their size",
    "memory limit enforced",
    "owners known from kubelet",
    "what does not fit is not offered",
    "freed and given again",
    "killed agent knows them again",
    "clean stop",
]
NVIDIA_STEPS = [
    "node registered",
    "whole GPUs given",
    "replicas by NVIDIA's file",
    "spread over the GPUs",
    "too many replicas refused",
    "owners known from kubelet",
    "live limit refused",
    "an ill GPU takes its replicas with it",
    "killed agent knows them again",
    "clean stop",
]


@pytest.fixture
def scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        pytest.param("slices", SLICES_STEPS, id="slices: enforced, freed, given again"),
        pytest.param("nvidia", NVIDIA_STEPS, id="nvidia: replicas"),
    ],
)
def test_every_step_is_seen(scratch: Path, mode: str, steps: list[str]) -> None:
    done = subprocess.run(
        [*COMMAND, "demo", "--json", "--mode", mode],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert [check for check in answer["checks"] if not check["passed"]] == []
    assert [check["name"] for check in answer["checks"]] == steps
    assert (done.returncode, answer["passed"], done.stderr) == (0, True, "")
    assert list(scratch.iterdir()) == []


STOPPED_AGENT = """
import os, signal, sys
if "demo" in sys.orig_argv:
    from agent.demo import deadline
    deadline.STEP_S = 15.0
if "run" in sys.orig_argv:
    import asyncio
    from agent.adapters import device_plugin
    async def allocate(*_):
        os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.sleep(600)  # a stop takes effect a moment later
    device_plugin.Answers.allocate = allocate
"""


@pytest.mark.skipif(bool(FROZEN), reason="the release takes no modules from outside")
@pytest.mark.timeout(300)
def test_an_agent_that_does_not_answer_kubelet_ends_it(scratch: Path, tmp_path: Path) -> None:
    """Kubelet waits for Allocate without end; the demo does not."""
    (tmp_path / "sitecustomize.py").write_text(STOPPED_AGENT)
    done = subprocess.run(
        [*COMMAND, "demo", "--json", "--mode", "slices"],
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    failed = [check for check in json.loads(done.stdout)["checks"] if not check["passed"]]
    assert [check["name"] for check in failed] == ["equal slices add up", "all ended"]
    assert failed[0]["detail"].startswith("HungError")
    assert "in admit" in done.stderr, "where it hung is told"
    assert done.returncode == 1
    assert list(scratch.iterdir()) == []
