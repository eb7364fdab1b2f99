"""What reading a container's usage region costs: 100 containers, in this process, files in memory."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agent.adapters.region_reader import HostRegionReader
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES, V1
from agent.domain.region_reading import RegionName
from agent.sim.driver import made_up_uuid
from tests.bench.rows import Row, row

CONTAINERS, ROUNDS = 100, 20
US = 1e6
SHARED_MEMORY = Path("/dev/shm")


def region_area() -> Iterator[Row]:
    """Read the region of one container: of few processes and GPUs, and of as many as there can be."""
    for processes, gpus, target in ((1, 1, 100.0), (4, 1, 100.0), (4, 8, None), (1024, 16, None)):
        took_us, ran_us = _read(processes, gpus)
        what = f"{processes} process{'es' * (processes > 1)}, {gpus} GPU{'s' * (gpus > 1)}"
        yield row("region", f"read of one container: time, {what}", took_us, "us", target=target)
        yield row("region", f"read of one container: CPU, {what}", ran_us, "us", target=target)


def _read(processes: int, gpus: int) -> tuple[list[float], list[float]]:
    containers = CONTAINERS if processes < 100 else 4
    root = Path(tempfile.mkdtemp(prefix="vgpu-bench-", dir=SHARED_MEMORY))
    root.chmod(0o755)
    try:
        names = [RegionName(f"uid-{number}", "main", "x.cache") for number in range(containers)]
        for name in names:
            _make(root, name, processes, gpus)
        reader = HostRegionReader(root)
        took_us, ran_us = [], []
        for _ in range(ROUNDS):
            began, ran = time.perf_counter(), time.thread_time()
            readings = tuple(reader.read(names))
            took_us.append((time.perf_counter() - began) * US / containers)
            ran_us.append((time.thread_time() - ran) * US / containers)
            for one in readings:
                if not one.region or len(one.region.processes) != processes:
                    raise RuntimeError(one.problem)
                if not all(process.counters for process in one.region.processes):
                    raise RuntimeError("the processes' counters were not read")
        return took_us, ran_us
    finally:
        shutil.rmtree(root)


def _make(root: Path, name: RegionName, processes: int, gpus: int) -> None:
    directory = root / "containers" / f"{name.pod_uid}_{name.container}"
    directory.mkdir(parents=True)
    (root / "containers").chmod(0o755)
    devices = tuple(DeviceLimit(uuid=made_up_uuid(number)) for number in range(gpus))
    with (directory / name.name).open("wb") as file:
        os.truncate(file.fileno(), FILE_BYTES)
        for piece in new_region(LimitsFile(devices=devices), region_id=1, now_s=0):
            os.pwrite(file.fileno(), piece.content, piece.offset)
        for index in range(processes):
            at = V1["slots"] + index * V1["slot"]
            os.pwrite(file.fileno(), (index + 1).to_bytes(4, "little"), at)
            os.pwrite(file.fileno(), b"\1\0\0\0", at + V1["slot.status"])
            since_at = V1["slot.utilisation"] + V1["utilisation.counts_since"]
            for field_at in (V1["slot.start_time"], since_at):  # it counts for itself, too
                os.pwrite(file.fileno(), b"\7", at + field_at)
        os.pwrite(file.fileno(), processes.to_bytes(4, "little"), V1["slot_count"])
