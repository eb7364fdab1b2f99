"""The agent's side of a run in virtual time: sets a container's limits at given moments.

python limits_world.py REPOSITORY PARTIES HOST_DIR STATE_DIR POD_UID '[[AT_MS, PERMILLE], ...]'
"""

import ctypes
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from agent.adapters.live_limits import HostLiveLimits
from agent.domain.limit_lines import limits_in
from agent.domain.limit_record import LimitRecord

MS = 1_000_000

cuda = ctypes.CDLL("libcuda.so.1")
cuda.sim_clock_read.restype = ctypes.c_uint64
cuda.sim_clock_sleep_until.argtypes = [ctypes.c_uint64]
parties, uid = int(sys.argv[2]), sys.argv[5]
limits = HostLiveLimits(Path(sys.argv[3]), Path(sys.argv[4]), most_names=2)
file = limits.read(uid, "main")
assert file is not None
if cuda.sim_clock_join(parties, parties - 1) != 0:
    sys.exit("the simulated driver's clock is not virtual")
began_ns = cuda.sim_clock_read()
for at_ms, permille in json.loads(sys.argv[6]):
    cuda.sim_clock_sleep_until(began_ns + at_ms * MS)
    wanted = tuple(replace(limit, core_permille=permille) for limit in limits_in(file).values())
    assert limits.set_limits(uid, "main", LimitRecord(limits=wanted)) is not None
cuda.sim_clock_leave(0)
