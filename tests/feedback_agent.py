"""The agent's feedback loop as a process, in real time.

    python feedback_agent.py HOST_VGPU_DIR [SECONDS_BETWEEN_ROUNDS]

Rounds come every 0.1 s if nothing is said. Says "ready" after the first one.
"""

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
from agent.supervisor import Supervisor, serve

logs.configure(form="logfmt", level="warning", environ={})
root = Path(sys.argv[1])
switches = HostRegionSwitches(root)
leases = HostLiveLimits(root, root / "state", most_names=2)
roster = Roster(switches, leases, Published(PodTable()), priorities_of_regions=True)
feedback = Feedback(
    roster,
    Levers(switches, leases, ProcessGuard()),
    lender=Lender(switches, leases),
    every_s=float(sys.argv[2]) if len(sys.argv) > 2 else 0.1,
)
feedback.turn()
sys.stdout.write("ready\n")
sys.stdout.flush()
supervisor = Supervisor([feedback])
raise SystemExit(serve(supervisor, notify=lambda _: None, tick=lambda: "", stop_within_s=5.0))
