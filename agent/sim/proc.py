"""A /proc as a node with containers has it: real processes, in cgroups of made-up pods.

The stand-in runtime (`agent.sim.container`) makes no cgroups, and somebody who only tries the
program may not. So what the kernel says of a process is linked from the real /proc, and its cgroup
and mounts are written as containerd and kubelet would have made them. A directory here outlives its
process, as no pid of the real one does; its files then cannot be read. NOT imitated: anything but
what an agent reads.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from agent.sim.container import SimMount

LINKED = ("stat", "status", "maps", "fd", "ns", "cmdline", "comm")


class SimProc:
    """The directory. With this as its /proc, an agent sees exactly who was added."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.add(1)
        (root / "self").symlink_to("1")

    def add(
        self, pid: int, *, pod_uid: str = "", container: str = "", mounts: Sequence[SimMount] = ()
    ) -> None:
        """Show a process that lives; with a pod's uid as one of its container."""
        real, shown = Path("/proc") / str(pid), self.root / str(pid)
        shown.mkdir()
        for name in LINKED:
            (shown / name).symlink_to(real / name)
        # What others' links lead to is for root alone to see.
        with contextlib.suppress(OSError):
            (shown / "exe").symlink_to((real / "exe").readlink())
        identity = hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()
        place = f"/kubepods/burstable/pod{pod_uid}/{identity}" if pod_uid else "/init.scope"
        (shown / "cgroup").write_text(f"0::{place}\n")
        lines = (
            f"{number} 1 8:1 {mount.host_path} {mount.container_path} rw - ext4 /dev/sda1 rw\n"
            for number, mount in enumerate(mounts, 100)
        )
        (shown / "mountinfo").write_text("".join(lines))
