"""Which pod a process belongs to, by a /proc of plain files and by the real one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_proc import FakeProc

from agent.adapters.process_places import MAX_PROGRAM_CHARS, HostProcessPlaces
from agent.domain.bypass import Whereabouts
from tests.leaderless import leaderless
from tests.wire.test_processes import MAIN, UID, cgroup, mounts


@pytest.mark.parametrize(
    ("kept", "where"),
    [
        pytest.param({}, Whereabouts(5, "nowhere"), id="of the host"),
        pytest.param(
            {"cgroup": cgroup(), "mountinfo": mounts()},
            Whereabouts(5, "nowhere", UID, MAIN, "main"), id="of a container with a grant",
        ),
        pytest.param(
            {"cgroup": cgroup()}, Whereabouts(5, "nowhere", UID, MAIN, ""), id="without a grant"
        ),
        pytest.param({"exe": "/opt/a b (deleted)"}, Whereabouts(5, "a b"), id="program deleted"),
        pytest.param({"exe": "/x/\x1b[31m\nX"}, Whereabouts(5, "?[31m?X"), id="a name to mislead"),
        pytest.param({"exe": "/" + "x" * 200}, Whereabouts(5, "x" * MAX_PROGRAM_CHARS), id="long"),
        pytest.param({"state": "Z"}, None, id="a zombie"),
    ],
)  # fmt: skip
def test_whereabouts(tmp_path: Path, kept: dict[str, str], where: Whereabouts | None) -> None:
    proc = FakeProc(tmp_path)
    proc.add(70, **kept)  # type: ignore[arg-type]
    assert HostProcessPlaces(tmp_path, "containers").trace({70}) == ({70: where} if where else {})


def test_a_process_whose_first_thread_has_ended_is_where_its_others_are(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(70, cgroup(), mountinfo=mounts())
    proc.end_first_thread(70, 75)
    found = HostProcessPlaces(tmp_path, "containers").trace({70})
    assert found == {70: Whereabouts(5, "nowhere", UID, MAIN, "main")}


def test_who_is_not_there_is_left_out(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    (proc.add(70) / "stat").unlink()
    (proc.add(71) / "stat").write_text("nonsense")
    (proc.add(72) / "exe").unlink()
    found = HostProcessPlaces(tmp_path, "containers").trace({0, -1, 9, 70, 71, 72})
    assert found == {72: Whereabouts(5, "")}


def test_a_process_of_this_machine() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        found = HostProcessPlaces(Path("/proc"), "containers").trace({process.pid, os.getpid()})
        process.kill()
    assert {process.pid, os.getpid()} == set(found)
    assert found[process.pid].start_time >= found[os.getpid()].start_time > 0


def test_a_process_of_this_machine_whose_first_thread_has_ended() -> None:
    with leaderless() as process:
        found = HostProcessPlaces(Path("/proc"), "containers").trace({process.pid, os.getpid()})
    assert found[process.pid].start_time >= found[os.getpid()].start_time
    assert found[process.pid].program == Path(sys.executable).resolve().name
