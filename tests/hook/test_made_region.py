"""A usage region that the agent has made: the container's only one, whatever is done to it."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hooked_programs import LIMIT, Node
from limits_bed import LimitsBed, limits_bed
from region_files import FILE_BYTES, RegionFile

from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.new_region import new_region
from agent.domain.region import TAIL, TAIL_OFFSET, V1
from agent.sim.driver import made_up_uuid

MIB = 1 << 20
A, B = made_up_uuid(0), made_up_uuid(1)
REFUSED = 304  # CUDA_ERROR_OPERATING_SYSTEM
ASK = "say(init=cuda.cuInit(0), alloc=alloc(1)[0])"
ADVICE = "delete the pod, so that the node's vGPU agent makes it anew"
SPOILT = "it was cut short or overwritten; "
PRIORITY_AT, RECENT_AT = V1["priority"], V1["recent_kernel"]
ID_AT = TAIL_OFFSET + TAIL["id"]


@pytest.fixture
def bed(node: Node, tmp_path: Path) -> LimitsBed:
    made = limits_bed(node, tmp_path / "library")
    made.write(DeviceLimit(uuid=A, memory_limit_bytes=1000 * MIB), makes_region=True)
    return made


def overwritten(at: int, content: bytes) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), content, at)

    return spoil


def exchanged(path: Path) -> None:
    """By a copy of itself as it was at first, the id in it included."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".own"))
    path.symlink_to(path.with_suffix(".own"))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        pytest.param(Path.unlink, "No such file or directory", id="deleted"),
        pytest.param(exchanged, "it is not the file that the node's vGPU agent has made", id="exchanged"),
        pytest.param(linked, "Too many levels of symbolic links", id="linked"),
        pytest.param(lambda path: os.truncate(path, 0), SPOILT, id="emptied"),
        pytest.param(
            lambda path: os.truncate(path, FILE_BYTES - 1), SPOILT, id="a byte short"
        ),
        pytest.param(
            overwritten(0, bytes(FILE_BYTES)), SPOILT, id="zeros"
        ),
        pytest.param(overwritten(0, bytes(4)), SPOILT, id="no magic"),
        pytest.param(overwritten(4, b"\2"), SPOILT, id="another major version"),
        pytest.param(overwritten(TAIL_OFFSET, bytes(64)), SPOILT, id="zeros over our part"),
        pytest.param(overwritten(ID_AT, bytes(8)), SPOILT, id="no id"),
        pytest.param(overwritten(ID_AT + 7, b"\2"), SPOILT, id="another id"),
        pytest.param(
            overwritten(TAIL_OFFSET + TAIL["slots_backed"], bytes(4)), SPOILT,
            id="as if it had holes",
        ),
    ],
)  # fmt: skip
def test_there_is_no_second_one_for_who_spoils_the_first(
    bed: LimitsBed, spoil: Callable[[Path], None], complaint: str
) -> None:
    cache = bed.node.cache
    assert bed.node.run("say(init=start(), given=alloc(900)[0])", **bed.environment())["given"] == 0
    spoil(cache)
    before = cache.read_bytes() if cache.exists() else None
    said = bed.node.run(ASK, **bed.environment(**{LIMIT: "1g"}))
    assert (said["init"], said["rc"]) == (REFUSED, 0)
    assert said["alloc"] != 0
    assert f"cannot be counted in {cache}: {complaint}" in said["stderr"]
    assert said["stderr"].rstrip().endswith(ADVICE)
    assert (cache.read_bytes() if cache.exists() else None) == before


def test_who_runs_already_gets_nothing_by_writing_zeros_over_it(bed: LimitsBed) -> None:
    code = (
        "import os\n"
        "start(); first = alloc(900)\n"
        f"fd = os.open({str(bed.node.cache)!r}, os.O_RDWR); os.pwrite(fd, bytes({FILE_BYTES}), 0)\n"
        "say(first=first[0], second=alloc(900)[0], freed=free(first[1]), third=alloc(900)[0])"
    )
    said = bed.node.run(code, **bed.environment())
    assert said | {"stderr": ""} == {
        "first": 0, "second": 2, "freed": 0, "third": 2, "rc": 0, "stderr": "",
    }  # fmt: skip


def test_who_runs_already_goes_on_with_what_it_had(bed: LimitsBed) -> None:
    """Deleted or exchanged, the file is still there for those who have it mapped."""
    code = (
        "import os\n"
        f"start(); first = alloc(900)[0]; os.unlink({str(bed.node.cache)!r})\n"
        "say(first=first, more=alloc(200)[0], rest=alloc(100)[0])"
    )
    said = bed.node.run(code, **bed.environment())
    assert (said["first"], said["more"], said["rest"]) == (0, 2, 0)


def test_a_container_that_starts_again_goes_on_with_it(bed: LimitsBed) -> None:
    """What the processes of the first start left in it is swept."""
    inode = bed.node.cache.stat().st_ino
    first = bed.node.start(
        "start(); print(alloc(900)[0], flush=True); input()", env=bed.environment()
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "0\n"
    assert RegionFile(bed.node.cache).ledger() == 900 * MIB
    first.kill()
    first.communicate(timeout=60)
    said = bed.node.run("say(init=start(), given=alloc(1000)[0])", **bed.environment())
    assert (said["init"], said["given"]) == (0, 0)
    assert bed.node.cache.stat().st_ino == inode


def test_a_process_says_its_priority_where_the_agent_could_not_know_it(bed: LimitsBed) -> None:
    def priority() -> int:
        return int(struct.unpack_from("<i", bed.node.cache.read_bytes(), PRIORITY_AT)[0])

    assert bed.node.run(ASK, **bed.environment(CUDA_TASK_PRIORITY="0"))["init"] == 0
    assert priority() == 0
    assert bed.node.run(ASK, **bed.environment())["init"] == 0  # a shell without environment
    assert priority() == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("0", 0, id="high"),
        pytest.param("3", 3, id="any number"),
        pytest.param("low", 1, id="no number: it was the highest"),
        pytest.param("2nd", 2, id="a number and more"),
        pytest.param("99999999999", 1, id="out of range"),
        pytest.param("", 1, id="empty"),
    ],
)
def test_a_priority_that_is_none_is_the_default(node: Node, text: str, expected: int) -> None:
    said = node.run(ASK, **{LIMIT: "1g", "CUDA_TASK_PRIORITY": text})
    assert said["init"] == 0
    assert struct.unpack_from("<i", node.cache.read_bytes(), PRIORITY_AT)[0] == expected


def test_who_launches_says_so_itself(bed: LimitsBed) -> None:
    """Only then is the container active; one that was only granted keeps nobody waiting."""

    def recent() -> int:
        return int(struct.unpack_from("<i", bed.node.cache.read_bytes(), RECENT_AT)[0])

    assert bed.node.run(ASK, **bed.environment())["init"] == 0
    assert recent() == 0
    bed.node.sim.kernel("kernel", 100)
    code = (
        "from gpu_calls import kernel, launch\n"
        "init = start()\n"
        "say(init=init, launched=launch(kernel('kernel')))"
    )
    assert bed.node.run(code, **bed.environment())["launched"] == 0
    assert recent() == 2


def test_it_is_what_the_hook_makes_where_there_is_no_agent(node: Node, tmp_path: Path) -> None:
    """Byte for byte, but for times, the mark, and that a process that makes it counts as active."""
    bed = limits_bed(node, tmp_path / "library")
    devices = (
        DeviceLimit(uuid=A, memory_limit_bytes=1000 * MIB, core_permille=305),
        DeviceLimit(uuid=B, memory_limit_bytes=7),
    )
    bed.write(*devices)
    assert node.run("say(init=cuda.cuInit(0))", **bed.environment())["init"] == 0
    by_hook = bytearray(node.cache.read_bytes())
    by_agent = bytearray(len(by_hook))
    for piece in new_region(LimitsFile(devices=devices), region_id=1, now_s=0):
        by_agent[piece.offset : piece.offset + len(piece.content)] = piece.content
    recent = [struct.unpack_from("<i", raw, RECENT_AT)[0] for raw in (by_hook, by_agent)]
    assert recent == [2, 0]
    for raw in (by_hook, by_agent):
        raw[RECENT_AT : RECENT_AT + 4] = bytes(4)
        raw[V1["limit_bytes"] : V1["limit_bytes"] + 256] = bytes(256)  # told once devices are used
        raw[V1["slots"] : V1["slots"] + V1["slot"]] = bytes(V1["slot"])  # that process's
        raw[V1["slot_count"] : V1["slot_count"] + 4] = bytes(4)
        raw[V1["last_kernel_time_s"] : V1["last_kernel_time_s"] + 8] = bytes(8)
        raw[TAIL_OFFSET + TAIL["sweeps"] : TAIL_OFFSET + TAIL["sweeps"] + 4] = bytes(4)
        raw[TAIL_OFFSET + 24 : TAIL_OFFSET + 32] = bytes(8)  # when it was swept
        raw[ID_AT : ID_AT + 8] = bytes(8)
    assert [at for at in range(len(by_hook)) if by_hook[at] != by_agent[at]] == []


def test_limits_and_shares_are_in_it_from_the_start(node: Node, tmp_path: Path) -> None:
    """As they are after the first process has told them."""
    bed = limits_bed(node, tmp_path / "library")
    bed.write(
        DeviceLimit(uuid=A, memory_limit_bytes=1000 * MIB, core_permille=305), makes_region=True
    )
    at_first = node.cache.read_bytes()[V1["limit_bytes"] : V1["slots"]]
    assert node.run("say(init=start(), given=alloc(1)[0])", **bed.environment())["given"] == 0
    assert node.cache.read_bytes()[V1["limit_bytes"] : V1["slots"]] == at_first
