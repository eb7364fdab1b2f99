"""`vgpu-agent uninstall`: MPS daemons that an agent has started, and the GPUs that they have.

A GPU whose compute mode is still the daemons' is closed to everybody without one, whatever plugin
hands it out afterwards.
"""

from agent.config import Config
from agent.hostinstall.command import Say


def retire_mps_daemons(config: Config, *, dry_run: bool, say: Say) -> None:
    """End them. Raises NodeNotReady when one cannot be."""
    if not config.mps_root.is_dir():
        return
    from agent.adapters.mps import HostMps

    mps = HostMps(config.mps_root)
    for daemon in mps.started():
        if not dry_run:
            mps.retire(daemon)
        done = "would end" if dry_run else "ended"
        say(f"{done} the MPS daemon of {daemon.resource}, and opened {', '.join(daemon.uuids)}")
