"""Changes limits in children that are killed at every line of code of the files that matter.

    killed_changes.py <host vgpu dir> <state dir> <pod uid> <container>

Child n is killed when it is about to run its n-th such line, until one comes through. After each
the parent starts as an agent does, and the container must have the old limits or the new, on all
its devices, and what the record says. Prints what it has seen as JSON.
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.adapters.live_limits import HostLiveLimits
from agent.domain.limit_lines import limits_in, sequences
from agent.domain.limit_record import SetLimit
from agent.domain.limits_file import LimitsFile, MalformedLimits, decode

WATCHED = (
    "live_limits.py",
    "mapped_limits.py",
    "limit_records.py",
    "safe_files.py",
    "limit_lines.py",
)
MIB = 1 << 20


def killer(at: int) -> Any:
    """A trace function that ends this process before line number `at`."""
    left = [at]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def leased(until_ns: int) -> Any:
    def change(now: LimitsFile) -> LimitsFile:
        return replace(
            now,
            devices=tuple(
                replace(d, lent_permille=1, lent_until_ns=until_ns, blocked_until_ns=until_ns)
                for d in now.devices
            ),
        )

    return change


def main() -> None:
    host, state, (uid, name) = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:5]
    path = host / "limits" / f"{uid}_{name}"
    seen = {"kills": 0, "half_written": 0, "old": 0, "new": 0}
    wrong: list[str] = []
    for at in range(1, 2000):
        live = HostLiveLimits(host, state)
        old = live.read(uid, name)
        assert old is not None
        new = tuple(
            SetLimit(uuid=d.uuid, memory_limit_bytes=(at + i) * MIB, core_permille=at % 1000)
            for i, d in enumerate(old.devices)
        )
        child = os.fork()
        if not child:
            live = HostLiveLimits(host, state)
            sys.settrace(killer(at))
            live.change(uid, name, leased(at))
            live.set_limits(uid, name, replace(live.record(uid, name), limits=new))
            os._exit(0)
        came_through = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        seen["kills"] += not came_through
        left = sequences(path.read_bytes())
        seen["half_written"] += any(sequence % 2 for sequence in left)
        agent = HostLiveLimits(host, state)
        agent.mend()
        try:
            found = decode(path.read_bytes())
        except MalformedLimits as error:
            wrong.append(f"{at}: {error}")
            break
        outcome = {tuple(limits_in(old).values()): "old", new: "new"}.get(
            tuple(limits_in(found).values())
        )
        if outcome is None or (came_through and outcome != "new"):
            wrong.append(f"{at}: {found}")
        else:
            seen[outcome] += 1
        if agent.mend() or replace(found, devices=()) != replace(old, devices=()):
            wrong.append(f"{at}: not settled: {found}")
        if came_through:
            break
    print(json.dumps({**seen, "wrong": wrong}))  # noqa: T201 - to the test


main()
