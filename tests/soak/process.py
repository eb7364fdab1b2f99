"""An agent process that many pods, scrapes and restarts of its neighbours pass by: what stays of them.

The days of tests/soak/node.py are of services in one process that takes their turns; here threads,
sockets and memory are those of the program itself. Looked at from outside, by /proc and /metrics.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.sim.container import Container, SimMount
from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.whole import finished, published, up
from tests.faults.invariants import Counters, unreleased, violations
from tests.waiting import eventually

FLAGS = ("--cache-gc-after", "10s", "--cache-gc-interval", "1s", "--process-interval", "0.2s")
FLAGS += ("--accounting-interval", "0.2s", "--allocate-budget", "10s")
SETTLED = 10  # looks in a row at which there are as many threads and descriptors
SCRAPES = 10
# Each loop that asks the API server keeps its connection and opens another when that one was cut, at
# its next question: so there are one or two more now than then. One for each restart is too many.
MOST_CONNECTIONS = 3
PAGES = ("/metrics", "/readyz", "/healthz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a process has at a moment at which nobody asks anything of it."""

    threads: int
    descriptors: int  # of everything but the two kinds below
    connections: int  # to the API server
    kept: int  # descriptors of files of containers that are deleted
    resident_kib: int


def look(node: SimNode, pid: int) -> Look:
    """By /proc, of a process whose owner we are."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert resident, status
    files = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            files.append(str(descriptor.readlink()))
    theirs = [file for file in files if file.startswith(f"{node.root}/host/vgpu/")]
    others = _other_sockets(pid, node.api.port)
    connections = sum(file.startswith("socket:") and file not in others for file in files)
    return Look(
        threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
        descriptors=len(files) - len(theirs) - connections,
        connections=connections,
        kept=sum(file.endswith(" (deleted)") for file in theirs),
        resident_kib=int(resident[1]),
    )


def _other_sockets(pid: int, port: int) -> set[str]:
    """Sockets that are no connections to this port, as the links in /proc/PID/fd name them.

    A connection that was reset is in no list any more until its loop asks the next question.
    """
    found = []
    for kind, inode_at in (("tcp", 9), ("tcp6", 9), ("unix", 6), ("netlink", 9)):
        rows = Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]
        for row in map(str.split, rows):
            if kind != "tcp" or not row[2].endswith(f":{port:04X}"):
                found.append(row[inode_at])
    return {f"socket:[{inode}]" for inode in found}


def objections_to(before: Look, after: Look, *, most_kib: int) -> list[str]:
    """What there is more of, a sentence each."""
    grown = [
        (after.threads - before.threads, 0, "threads"),
        (after.descriptors - before.descriptors, 0, "descriptors"),
        (after.connections - before.connections, MOST_CONNECTIONS, "connections"),
        (after.kept, 0, "files of the gone"),
        (after.resident_kib - before.resident_kib, most_kib, "KiB of resident memory"),
    ]
    return [f"{n} more {what}, and {most} are allowed" for n, most, what in grown if n > most]


class Life:
    """One agent's, and that of a pod that stays while others come and go."""

    def __init__(self, node: SimNode, stays: RanPod, tenant: Container) -> None:
        self.node = node
        self.counters = Counters(node)
        self.pods = 0
        self._stays = stays
        self._tenant = tenant

    @property
    def pid(self) -> int:
        agent = self.node.agent
        assert agent is not None
        assert agent.poll() is None, f"the agent has ended: {agent.returncode}"
        return agent.pid

    def round(self, pods: int) -> None:
        """Pods come, all are looked at, kubelet and API server restart, and the pods go."""
        assert not self._tenant.ask("alloc 1000").ok  # its limit is 700 MiB: a counter goes on
        there = [self._pod() for _ in range(pods)]
        self._in_order(there)
        self.scrape()
        self.node.kubelet.restart()
        up(self.node, 20)
        eventually(lambda: published(self.node) == 20, within_s=60, what="told to the scheduler")
        self.node.api.restart(lose_history=True)
        there += [self._pod()]
        self.scrape()
        self._in_order(there)
        for pod in there:
            self.node.delete_pod(pod)
        assert self._tenant.running

    def _pod(self) -> RanPod:
        self.pods += 1
        pod = self.node.run_pod(f"pod-{self.pods}", [Ask(memory_mib=700 + self.pods)])
        assert pod.admitted.ok, pod.admitted.message
        eventually(lambda: finished(self.node, pod), within_s=60, what="lock released")
        return pod

    def _in_order(self, there: list[RanPod]) -> None:
        eventually(
            lambda: not violations(self.node, [self._stays, *there]), within_s=60, what="order"
        )

    def scrape(self) -> None:
        """Every page again and again; counters are as high as they were, or higher."""
        for _ in range(SCRAPES):
            for page in PAGES:
                eventually(lambda page=page: self.node.fetch(page)[0] == 200, what=page)
            assert self.counters.violations() == []

    def looked(self) -> Look:
        """When the number of threads and descriptors stays, and a pod is there that came last."""
        pod = self._pod()  # the agent lets go of the limits of the gone when it opens another's
        seen: list[Look] = []

        def stays() -> bool:
            seen.append(look(self.node, self.pid))
            return len({(one.threads, one.descriptors) for one in seen[-SETTLED:]}) == 1 and (
                len(seen) >= SETTLED
            )

        eventually(stays, within_s=60, every_s=0.1, what="threads and descriptors stay")
        self.node.delete_pod(pod)
        return seen[-1]

    def released(self) -> None:
        """Nothing of pods that are gone is left on disk."""
        eventually(lambda: not unreleased(self.node), within_s=60, every_s=0.2, what="all released")


@contextmanager
def life(node: SimNode) -> Iterator[Life]:
    """With a pod whose counters are not zero."""
    pod = node.run_pod("stays", [Ask(memory_mib=700)])
    grant = pod.admitted.containers["main"]
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    tenant = Container.start("stays", driver=node.driver, env=grant.env, mounts=mounts)
    try:
        assert tenant.ask("alloc 600").ok
        yield Life(node, pod, tenant)
    finally:
        tenant.stop()
