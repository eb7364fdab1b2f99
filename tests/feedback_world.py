"""The agent's feedback loop as a process of its own, in the simulated driver's virtual time.

    python feedback_world.py PARTIES HOST_VGPU_DIR '{"until_ms": ..., ...}'

At `until_ms` it kills itself with everything as it is then; nothing of the agent runs after that.
Says on stderr what it should not.
"""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agent import logs
from agent.adapters.block_guard import ProcessGuard
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.region_switches import HostRegionSwitches
from agent.services.feedback import Feedback, Levers
from agent.services.lending import Lender
from agent.services.published import PodTable, Published
from agent.services.roster import Roster

MS = 1_000_000

cuda = ctypes.CDLL("libcuda.so.1")
read = cuda.sim_clock_read
read.restype = ctypes.c_uint64
cuda.sim_clock_sleep_until.argtypes = [ctypes.c_uint64]
logs.configure(form="logfmt", level="warning", environ={})
parties, root, asked = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
switches = HostRegionSwitches(root)
leases = HostLiveLimits(root, root / "state", clock_ns=read, most_names=2)
roster = Roster(switches, leases, Published(PodTable()), priorities_of_regions=True)
feedback = Feedback(
    roster,
    Levers(switches, leases, ProcessGuard()),
    priorities=asked.get("priorities", True),
    lender=Lender(switches, leases) if asked.get("lending", True) else None,
    clock_ns=read,
)
if cuda.sim_clock_join(parties, parties - 1) != 0:
    sys.exit("the simulated driver's clock is not virtual")
until_ns = read() + asked["until_ms"] * MS
while (now_ns := read()) < until_ns:
    cuda.sim_clock_sleep_until(min(now_ns + max(feedback.turn(), MS), until_ns))
cuda.sim_clock_leave(0)
os.kill(os.getpid(), signal.SIGKILL)
