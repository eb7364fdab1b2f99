"""`vgpu-agent demo --mode slices`: the story without scheduler and API server."""

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


@pytest.mark.timeout(150)
def test_slices_are_enforced_freed_and_given_again(scratch: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "demo", "--json", "--mode", "slices"],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert [check for check in answer["checks"] if not check["passed"]] == []
    assert [check["name"] for check in answer["checks"]][-3:] == [
        "freed and given again",
        "killed agent knows them again",
        "clean stop",
    ]
    assert (done.returncode, answer["passed"], done.stderr) == (0, True, "")
    assert list(scratch.iterdir()) == []
