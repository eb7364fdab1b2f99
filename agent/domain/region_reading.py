"""What became of reading a container's usage region, and which of its processes still count.

A slot outlives its process until somebody sweeps it, so what a region says is compared with the
processes that the node sees; where those cannot be seen, the region is believed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.domain.enforcement import Process
from agent.domain.expected_region import ANY, Expected
from agent.domain.region import Region, RegionProcess, Rejected

TICKS_PER_S = 100  # USER_HZ, in which the kernel tells when a process was started


@dataclass(frozen=True, slots=True)
class RegionName:
    """Where a container counts: in file `name` of its directory; empty: the one region there."""

    pod_uid: str
    container: str
    name: str = ""
    expected: Expected = ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReading:
    """A region, or why there is none. Neither: it is not made yet."""

    region: Region | None = None
    rejected: Rejected | None = None
    problem: str = ""  # the reason in a few words, where it is rejected


@dataclass(frozen=True, slots=True)
class Sight:
    """The processes of a container as the node saw them."""

    processes: tuple[Process, ...]
    began_at_ticks: int  # from boot; who was started later was not looked for
    now_ticks: int  # from boot, after the slots were read; nobody was started later


def living(slots: Sequence[RegionProcess], sight: Sight | None) -> tuple[RegionProcess, ...]:
    """The slots of processes that live. `sight` None: nobody knows, and all are believed.

    Our library's slots name the process by pid namespace, pid there and start time. HAMi-core's
    have the pid on the node, which it guesses, and the pid in the container; either will do.
    """
    if sight is None:
        return tuple(slots)
    # Both are as many as a container likes: they are not compared each with each.
    pids = {process.pid for process in sight.processes}
    inside = {process.pid_inside for process in sight.processes}
    whole = {(one.start_time, one.pid_inside, one.pid_namespace) for one in sight.processes}

    def lives(slot: RegionProcess) -> bool:
        if slot.start_time == 0:
            by_host = slot.host_pid > 0 and slot.host_pid in pids
            return by_host or not inside.isdisjoint((slot.pid, 0))
        if slot.start_time >= sight.began_at_ticks:
            return slot.start_time <= sight.now_ticks
        return not whole.isdisjoint(
            (slot.start_time, pid, namespace)
            for pid in (slot.pid, 0)  # 0: it could not be seen of the process
            for namespace in (slot.pid_namespace, 0)
        )

    return tuple(slot for slot in slots if lives(slot))
