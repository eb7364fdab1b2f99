"""What the feedback loop costs while containers compute: CPU time of a process that does only that.

Beside it, of one that wakes as often and reads as much, and does nothing with it: what that takes differs
several times over between machines, and on virtual ones from hour to hour.
"""

import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.domain.limits_file import DeviceLimit, LimitsFile, decode, encode
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES
from agent.domain.switch_words import ACTIVITY_AT, DEVICE_BYTES
from agent.services.lending import LOOK_NS, MS
from tests.bench.cpu import cores, cpu_s
from tests.bench.rows import Row, row

PROGRAM = Path(__file__).resolve().parents[1] / "feedback_agent.py"
CONTAINERS, PER_GPU, PERCENT = 8, 4, 25
MANY = 64
SAMPLES, FOR_S, SETTLED_S = 3, 8.0, 2.0
TOUCH_S = 0.005
WAKER = f"""
import os, select, sys
regions = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
nobody = select.poll()
print("ready", flush=True)
while True:
    nobody.poll({LOOK_NS / MS})
    for region in regions:
        os.pread(region, {DEVICE_BYTES}, {ACTIVITY_AT})
"""
_COUNTERS = struct.Struct("<qQQQQQ")  # budget, refilled, charged, throttled, launches, waits


def feedback_area() -> Iterator[Row]:
    """CPU with 8 containers on 2 GPUs, at work and idle; and with 64 on 16, all at work."""
    half = "all at work, half of them lent to"
    shares = "all at work at their shares"
    for containers, name, working, waiting, state in (
        (CONTAINERS, half, CONTAINERS // 2, CONTAINERS // 2, "awake"),
        (CONTAINERS, half, CONTAINERS // 2, CONTAINERS // 2, "asleep"),
        (CONTAINERS, shares, 0, CONTAINERS, "awake"),
        (CONTAINERS, shares, 0, CONTAINERS, "asleep"),
        (CONTAINERS, "all idle", 0, 0, "awake"),
        (MANY, half, MANY // 2, MANY // 2, "awake"),
    ):
        with cores(state):
            percents = _percents(containers, working, waiting)
        target = 0.5 if containers == CONTAINERS and (working or waiting) else None
        where = f"{containers} containers on {containers // PER_GPU} GPUs"
        label = f"CPU, share of one core, {where}, {name}, cores {state}"
        yield row("feedback", label, percents, "%", target=target)
    for state in ("awake", "asleep"):
        with cores(state):
            percents = _percents(CONTAINERS, 0, CONTAINERS, only_wake=True)
        label = f"a process that only wakes as often and reads {CONTAINERS} containers' counters"
        yield row("feedback", f"CPU, share of one core, {label}, cores {state}", percents, "%")


def _percents(
    containers: int, working: int, waiting: int, *, only_wake: bool = False
) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as directory:
        root = Path(directory) / "vgpu"
        for name in ("", "containers", "limits", "state"):
            (root / name).mkdir(mode=0o755)
        regions = [_container(root, number) for number in range(containers)]
        files = (root / "containers").glob("*/*.cache")
        words: Sequence[str | Path] = ["-c", WAKER, *files] if only_wake else [PROGRAM, root, "5"]
        agent = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "ready\n"
            _compute(regions, working, waiting, SETTLED_S)
            percents = []
            for _ in range(SAMPLES):
                before_s, began_s = cpu_s(agent.pid), time.monotonic()
                _compute(regions, working, waiting, FOR_S)
                ran_s = cpu_s(agent.pid) - before_s
                percents.append(ran_s / (time.monotonic() - began_s) * 100)
            lent_to = sum(_is_lent_to(file) for file in (root / "limits").iterdir())
            lends = working > 0 and not only_wake
            assert lent_to == (waiting if lends else 0), f"{lent_to} are lent to"
            return percents
        finally:
            agent.kill()
            agent.wait()


def _is_lent_to(file: Path) -> bool:
    (device,) = decode(file.read_bytes()).devices
    return device.lent_permille > 0 and device.lent_until_ns > time.monotonic_ns()


def _container(root: Path, number: int) -> mmap.mmap:
    """A container with a share of one GPU; its usage region."""
    name = f"0a1b2c3d-0000-4000-8000-{number:012x}_main"
    home = root / "containers" / name
    home.mkdir(mode=0o777)
    device = DeviceLimit(
        uuid=f"GPU-aaaaaaaa-0000-0000-0000-{number // PER_GPU:012x}", core_permille=PERCENT * 10
    )
    limits = LimitsFile(devices=(device,), cache_path="/x")
    (root / "limits" / name).write_bytes(encode(limits))
    with (home / "x.cache").open("w+b") as file:
        os.truncate(file.fileno(), FILE_BYTES)
        for piece in new_region(limits, region_id=7, now_s=1_800_000_000):
            os.pwrite(file.fileno(), piece.content, piece.offset)
        return mmap.mmap(file.fileno(), 0)


def _compute(regions: list[mmap.mmap], working: int, waiting: int, for_s: float) -> None:
    """Count as the hook does: a tenth of the time for who works, all of the share for who waits."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        for number, region in enumerate(regions[: working + waiting]):
            _, _, charged, throttled, launches, waits = _COUNTERS.unpack_from(region, ACTIVITY_AT)
            waits_now = number % 2 == 0 if working else True
            used_ns = round(TOUCH_S * 1e9 * (PERCENT / 100 if waits_now else 0.02))
            _COUNTERS.pack_into(
                region, ACTIVITY_AT, 0 if waits_now else 5_000_000, time.monotonic_ns(),
                charged + used_ns, throttled, launches + 10, waits + waits_now,
            )  # fmt: skip
        time.sleep(TOUCH_S)
