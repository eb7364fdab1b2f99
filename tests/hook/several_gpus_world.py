"""The agent's side of a container with several GPUs in virtual time: changes limits, blocks, and looks.

python several_gpus_world.py REPOSITORY PARTIES HOST_DIR STATE_DIR POD_UID REGION UNTIL_MS PLAN

PLAN is a list of [AT_MS, LIMITS, BLOCKS]: from then on, the permille of each GPU's time, and for how
many ms each is blocked. Prints for each step of STEP_MS what each GPU worked, and what the container
says it was charged and waited for there, since the beginning, in ns.
"""

import ctypes
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from agent.adapters.live_limits import HostLiveLimits
from agent.domain.lending import Lease
from agent.domain.limit_lines import limits_in
from agent.domain.limit_record import LimitRecord
from agent.domain.region import decode

STEP_MS, MS = 10, 1_000_000

cuda = ctypes.CDLL("libcuda.so.1")
cuda.sim_clock_read.restype = ctypes.c_uint64
cuda.sim_clock_sleep_until.argtypes = [ctypes.c_uint64]
cuda.sim_gpu_time.restype = ctypes.c_uint64
parties, uid, region = int(sys.argv[2]), sys.argv[5], Path(sys.argv[6])
limits = HostLiveLimits(
    Path(sys.argv[3]), Path(sys.argv[4]), clock_ns=cuda.sim_clock_read, most_names=2
)
file = limits.read(uid, "main")
assert file is not None
uuids = [device.uuid for device in file.devices]


def change(permilles: Sequence[int], blocks_ms: Sequence[int]) -> None:
    now = limits.read(uid, "main")
    assert now is not None
    held = limits_in(now)
    wanted = tuple(
        replace(held[uuid], core_permille=permille)
        for uuid, permille in zip(uuids, permilles, strict=True)
    )
    if wanted != tuple(held[uuid] for uuid in uuids):
        assert limits.set_limits(uid, "main", LimitRecord(limits=wanted)) is not None
    now_ns = cuda.sim_clock_read()
    leases = {
        place: Lease(blocked_until_ns=now_ns + block_ms * MS if block_ms else 0)
        for place, block_ms in enumerate(blocks_ms)
    }
    assert limits.lease(uid, "main", leases)


def looked() -> dict[str, list[int]]:
    counted = {device.uuid: device.counters for device in decode(region.read_bytes()).devices}
    counters = [counted[uuid] for uuid in uuids]
    return {
        "worked_ns": [int(cuda.sim_gpu_time(uuid.encode(), 0)) for uuid in uuids],
        "charged_ns": [one.charged_ns for one in counters if one],
        "throttled_ns": [one.throttled_ns for one in counters if one],
    }


if cuda.sim_clock_join(parties, parties - 1) != 0:
    sys.exit("the simulated driver's clock is not virtual")
began_ns, until_ms, plan = cuda.sim_clock_read(), int(sys.argv[7]), json.loads(sys.argv[8])
steps = []
for at_ms in range(STEP_MS, until_ms, STEP_MS):
    cuda.sim_clock_sleep_until(began_ns + at_ms * MS)
    steps.append(looked())
    if plan and plan[0][0] == at_ms:
        change(*plan.pop(0)[1:])
cuda.sim_clock_leave(0)
print(json.dumps(steps))  # noqa: T201 - how it speaks
