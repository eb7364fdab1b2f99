"""`vgpu-agent demo --mode slices` and `nvidia`: the stories without scheduler and API server."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND


@pytest.fixture
def scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "before_last"),
    [
        pytest.param("slices", "freed and given again", id="slices: enforced, freed, given again"),
        pytest.param("nvidia", "an ill GPU takes its replicas with it", id="nvidia: replicas"),
    ],
)
def test_every_step_is_seen(scratch: Path, mode: str, before_last: str) -> None:
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
    assert [check["name"] for check in answer["checks"]][-3:] == [
        before_last,
        "killed agent knows them again",
        "clean stop",
    ]
    assert (done.returncode, answer["passed"], done.stderr) == (0, True, "")
    assert list(scratch.iterdir()) == []
