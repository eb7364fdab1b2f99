"""Limits and blocks of one of several GPUs, changed while threads of one process launch on all of them.

The agent's files and the hook are the real ones, on simulated GPUs in virtual time: what is asserted is
what each GPU says it worked, and what the container counts.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from built_hook import ROOT, built, sim_libraries
from c_programs import compiled
from hooked_programs import Node

from agent.domain.limits_file import DeviceLimit, LimitsFile, encode
from agent.domain.region import decode
from agent.sim.driver import SimDriver, made_up_uuid

WORLD = Path(__file__).with_name("several_gpus_world.py")
UID = "11111111-2222-3333-4444-555555555555"
KERNEL_US, QUEUE_DEPTH = 100, 16
STEP_MS, PHASE_MS, WITHIN_MS = 10, 400, 100  # of the world; a change; until it has its effect
LIMIT, NONE = 300, 0  # permille of a GPU's time
POINTS = 3.0
MOST = 71  # launches that a thread has not told yet (hook/launch_count.h)


@dataclass(frozen=True)
class Phase:
    """What holds for as long as the next one does not: a limit for some GPUs, a block of others."""

    limited: tuple[int, ...] = ()
    blocked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What one GPU did in a phase, from when the change must have had its effect."""

    percent: float
    worked_ns: int
    charged_ns: int
    throttled_ns: int


@dataclass(frozen=True)
class Ran:
    """What each GPU did in each phase, and what was launched and counted on it in all."""

    phases: list[list[Seen]]
    launched: list[int]
    counted: list[int]


def run(directory: Path, gpus: int, phases: Sequence[Phase]) -> Ran:
    """Let a process with two threads for each GPU, and one that roams, live through the phases."""
    sim = SimDriver(directory, libraries=sim_libraries())
    uuids = [sim.add_gpu().uuid for _ in range(gpus)]
    sim.execution(clock="virtual", queue_depth=QUEUE_DEPTH)
    sim.kernel("kernel", KERNEL_US)
    home, host = directory / "container", directory / "host"
    home.mkdir()
    shutil.copy(built() / "libvgpu.so", home)
    devices = tuple(DeviceLimit(uuid=uuid) for uuid in uuids)
    region = home / "region.cache"
    (home / "vgpu.limits").write_bytes(encode(LimitsFile(devices=devices, cache_path=str(region))))
    (host / "limits").mkdir(parents=True)
    os.link(home / "vgpu.limits", host / "limits" / f"{UID}_main")
    plan = [
        [
            PHASE_MS * (number + 1),
            [LIMIT if gpu in phase.limited else NONE for gpu in range(gpus)],
            [PHASE_MS if gpu in phase.blocked else 0 for gpu in range(gpus)],
        ]
        for number, phase in enumerate(phases)
    ]
    until_ms = PHASE_MS * (len(phases) + 1)
    program = compiled(
        "several_gpus.c", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'hook' / 'sim'}", "-rdynamic",
        "-lpthread", "-ldl",
    )  # fmt: skip
    environment = {"PATH": os.environ["PATH"], **sim.environment()}
    hooked = {
        "LD_PRELOAD": str(home / "libvgpu.so"),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
    }
    processes = [
        _process([program, 2, 0, gpus, until_ms], {**environment, **hooked}),
        _process(
            [sys.executable, WORLD, ROOT, 2, host, host / "state", UID, region, until_ms,
             json.dumps(plan)],
            environment,
        ),
    ]  # fmt: skip
    (out, err), (steps, world_err) = [process.communicate(timeout=250) for process in processes]
    assert (err, world_err) == ("", "")
    told = json.loads(out)
    assert told["result"] == 0
    return Ran(
        phases=_seen(json.loads(steps), gpus, len(phases) + 1),
        launched=told["launches"],
        counted=counted(region, uuids),
    )


def counted(region: Path, uuids: Sequence[str]) -> list[int]:
    """How many launches the container says that it made on each GPU."""
    counters = {device.uuid: device.counters for device in decode(region.read_bytes()).devices}
    return [one.launches for one in (counters[uuid] for uuid in uuids) if one]


def _process(words: Sequence[object], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(word) for word in words], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _seen(steps: list[dict[str, list[int]]], gpus: int, phases: int) -> list[list[Seen]]:
    """Of the phase before the first change, too. Step i is looked at STEP_MS * (i + 1)."""

    def between(name: str, gpu: int, phase: int) -> int:
        first = (PHASE_MS * phase + WITHIN_MS) // STEP_MS - 1
        last = PHASE_MS * (phase + 1) // STEP_MS - 2
        return steps[last][name][gpu] - steps[first][name][gpu]

    window_ns = (PHASE_MS - WITHIN_MS - STEP_MS) * 1_000_000
    return [
        [
            Seen(
                percent=between("worked_ns", gpu, phase) / window_ns * 100,
                worked_ns=between("worked_ns", gpu, phase),
                charged_ns=between("charged_ns", gpu, phase),
                throttled_ns=between("throttled_ns", gpu, phase),
            )
            for gpu in range(gpus)
        ]
        for phase in range(phases)
    ]


def check(seen: Seen, phase: Phase, gpu: int) -> None:
    """One GPU did what the phase lets it."""
    if gpu in phase.blocked:
        assert (seen.worked_ns, seen.charged_ns) == (0, 0)
        assert seen.throttled_ns > 0
    elif gpu in phase.limited:
        assert seen.percent == pytest.approx(LIMIT / 10, abs=POINTS)
        assert seen.charged_ns == pytest.approx(seen.worked_ns, rel=0.05)
        assert seen.throttled_ns > 0
    else:
        assert seen.percent >= 100 - POINTS
        assert (seen.charged_ns, seen.throttled_ns) == (0, 0)


@pytest.mark.parametrize(("gpus", "gpu"), [(2, 0), (2, 1), (3, 1), (4, 3)])
def test_what_is_changed_of_one_gpu_holds_there_and_nowhere_else(
    tmp_path: Path, gpus: int, gpu: int
) -> None:
    """A limit comes and goes, a block, and a limit of all, while nobody stops to launch."""
    phases = [
        Phase(limited=(gpu,)), Phase(), Phase(blocked=(gpu,)), Phase(),
        Phase(limited=tuple(range(gpus))), Phase(),
    ]  # fmt: skip
    ran = run(tmp_path, gpus, phases)
    for phase, seen in zip([Phase(), *phases], ran.phases, strict=True):
        for number, one in enumerate(seen):
            check(one, phase, number)


def test_a_block_of_one_gpu_holds_beside_a_limit_of_another(tmp_path: Path) -> None:
    both = Phase(limited=(0,), blocked=(2,))
    ran = run(tmp_path, 3, [both, Phase()])
    for phase, seen in zip([Phase(), both, Phase()], ran.phases, strict=True):
        for number, one in enumerate(seen):
            check(one, phase, number)


# --- how many launches there were -------------------------------------------------------------------------


def test_each_launch_is_counted_and_about_where_it_was_made(tmp_path: Path) -> None:
    """Only of the thread that roams is it not known where, and only while nothing is limited."""
    phases = [Phase(limited=(1,)), Phase()]
    ran = run(tmp_path, 3, phases)
    assert sum(ran.counted) == sum(ran.launched)
    most_off = MOST * (1 + len(phases))
    assert ran.counted == [pytest.approx(launches, abs=most_off) for launches in ran.launched]


def in_turn(
    node: Node, gpus: int, turns: int, in_a_row: int, threads: int = 1, *more: str, **env: str
) -> list[int]:
    """How many launches are counted for each GPU, when threads have launched on each in turn."""
    uuids = [made_up_uuid(0), *(node.sim.add_gpu().uuid for _ in range(gpus - 1))]
    program = compiled("in_turn.c", f"-I{ROOT / 'hook'}", "-lpthread", "-ldl")
    words = [program, threads, gpus, turns, in_a_row, *more]
    env["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
    done = node.run_program([str(word) for word in words], **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    return counted(node.cache, uuids)


@pytest.mark.parametrize(("gpus", "in_a_row"), [(2, 1), (2, 16), (3, 5), (4, 1), (4, 8), (8, 2)])
def test_gpus_that_are_launched_on_in_turn_are_counted_alike(
    node: Node, gpus: int, in_a_row: int
) -> None:
    """Where there is no limit many launches are told at once, of which is known where the last was."""
    turns = 4 * MOST
    found = in_turn(node, gpus, turns, in_a_row)
    assert sum(found) == gpus * turns * in_a_row
    assert found == [pytest.approx(turns * in_a_row, abs=MOST)] * gpus


@pytest.mark.parametrize(("gpus", "in_a_row"), [(2, 1), (4, 7), (4, 70), (3, 71)])
def test_beside_a_limit_each_launch_is_counted_where_it_was_made(
    node: Node, gpus: int, in_a_row: int
) -> None:
    turns = 9
    found = in_turn(node, gpus, turns, in_a_row, CUDA_DEVICE_SM_LIMIT_0="90")
    assert found == [turns * in_a_row] * gpus


@pytest.mark.parametrize("limit", ["0", "90"])
@pytest.mark.parametrize(("turns", "forks"), [(25, []), (25, ["fork"]), (200, [])])
def test_each_launch_is_counted_when_its_thread_has_ended(
    node: Node, limit: str, turns: int, forks: list[str]
) -> None:
    """Not by a child of fork, too, which has launched nothing."""
    threads = 20
    found = in_turn(node, 1, turns, 1, threads, *forks, CUDA_DEVICE_SM_LIMIT=limit)
    assert found == [threads * turns]


ONE_KERNEL = """
from gpu_calls import *
import threading
start(1); start(0)
one, until_us = kernel("kernel"), now_us() + 800_000
def work(device):
    start(device); there = stream()
    while now_us() < until_us:
        assert launch(one, there) == 0
threads = [threading.Thread(target=work, args=[device]) for device in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say(percents=[gpu_us(uuid) / 8_000 for uuid in UUIDS])
"""


@pytest.mark.parametrize("lengths_us", [(400, 4), (2000, 5)])
def test_a_kernel_that_takes_longer_on_one_of_two_gpus_has_its_share_on_both(
    node: Node, lengths_us: tuple[int, int]
) -> None:
    """Were what is known of it one for both, the GPU where it is short had 66 or 74 of its 30 %."""
    uuids = [made_up_uuid(0), node.sim.add_gpu().uuid]
    for gpu, us in enumerate(lengths_us):
        node.sim.kernel("kernel", us, gpu=gpu)
    said = node.run_in_virtual_time(f"UUIDS = {uuids!r}\n" + ONE_KERNEL, CUDA_DEVICE_SM_LIMIT="30")
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["percents"] == [pytest.approx(30, abs=2)] * 2
