"""The ways a cluster shares GPUs, one module each, chosen by the setting `mode`.

A mode wires what differs between them: who decides which container gets what of which GPU, what
kubelet is offered, what the scheduler is told. All else (health, limits, accounting, cleaning up)
is the same for all.
"""

from agent.adapters.grant_log import FileGrantLog
from agent.adapters.live_limits import HostLiveLimits
from agent.modes.hami import HamiMode
from agent.modes.mode import Mode
from agent.parts import Parts

__all__ = ["Mode", "made"]


def made(parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> Mode:
    """The mode that the configuration names, wired. Nothing runs yet."""
    match parts.config.mode:
        case "slices":
            from agent.modes.slices import SlicesMode

            return SlicesMode(parts, grants, limits)
        case _:
            return HamiMode(parts, grants, limits)
