"""An agent that installs hooks, and dies in the middle when it is told to; a line in, a line out.

<library> <version> <die at>    install it, offer HAMi's name, collect what nobody wants; the
                                path comes back. `die at`: SIGKILL at so many steps; 0: never
"""

import os
import signal
import sys
from pathlib import Path

from agent.adapters.caches import HostCaches
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.hook_files import HostHookFiles, install_hook, offer_plain_name
from agent.services.hook_gc import HookGc
from agent.services.hook_install import HookInstall
from agent.services.published import PodTable, Published

STEPS = frozenset({"open", "os.rename", "os.remove", "os.utime", "os.scandir"})
left = 0


def count(event: str, _: object) -> None:
    global left  # noqa: PLW0603 - an audit hook has no other place
    if event in STEPS and left:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)


def installed(library: Path, version: str, host: Path, gc: HookGc) -> Path:
    """What the agent's service does in one step."""
    made: list[Path] = []

    def install() -> Path:
        made.append(install_hook(library, host, version))
        return made[-1]

    HookInstall(
        install,
        offer=lambda path: offer_plain_name(path, replace=False),
        collect=gc.collect_once,
    ).step_once()
    return made[-1]


def main(host: Path, proc: Path, state: Path) -> None:
    """Everything but the loop is the agent's own."""
    global left  # noqa: PLW0603
    sys.addaudithook(count)
    gc = HookGc(
        HostHookFiles(host, proc),
        HostCaches(host, lock_dir=state / "lock"),
        FileGrantLog(state),
        Published(PodTable({}, synced=True)),
        after_s=0,
    )
    for line in sys.stdin:
        library, version, die_at = line.split()
        left = int(die_at)
        path = installed(Path(library), version, host, gc)
        left = 0
        print(path, flush=True)  # noqa: T201 - to the test


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:]))
