"""Device plugins side by side: ours, and a peer's binary, in front of the same stand-ins.

    build.py bench --only plugin --peer-plugin PATH --peer-plugin-words '...'

The peer finds a simulated driver, a kubelet, an API server with HAMi's scheduler behind it, and in
its environment NODE_NAME, KUBECONFIG and HOOK_PATH. Its words may name {node}, {kubeconfig},
{kubelet_socket}, {plugins} (kubelet's directory), {root} (a directory to write to) and {port} (a free
one). Where it may (as root) it runs in a mount namespace of its own in which {plugins} is also
/var/lib/kubelet/device-plugins, for those that know no other place.
"""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.sim.node import RESOURCE, Ask, SimNode
from tests.bench.nodes import FROM_SOURCE, MIB, a_node
from tests.bench.rows import BenchError, Row, percentile, row

AREA = "plugin"
STARTS, PODS, IDLE_S = 5, 100, 20.0
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
IN_NAMESPACE = (
    "[ -d {kubelet} ] || {{ mount -t tmpfs tmpfs /var/lib && mkdir -p {kubelet}; }} && "
    'mount --bind {plugins} {kubelet} && exec "$@"'
)


@cache
def has_namespaces() -> bool:
    """Whether a mount namespace can be had here: by root, and not in every container."""
    try:
        return (
            subprocess.run(
                ["unshare", "--mount", "true"], capture_output=True, check=False
            ).returncode
            == 0
        )
    except OSError:
        return False


@dataclass(frozen=True)
class Peer:
    """Another device plugin: its binary, and the words it is started with."""

    program: Path
    words: str = ""

    def __post_init__(self) -> None:
        """Raises BenchError."""
        if not os.access(self.program, os.X_OK) or not self.program.is_file():
            raise BenchError(f"the peer's plugin, {self.program}, is no program that can be run")


class PeerNode(SimNode):
    """A node on which another program than the agent is the device plugin."""

    peer: Peer

    def start_agent(self, *_flags: str) -> None:
        """Start the peer; its log goes to `self.log`."""
        places = {
            "node": self.name, "kubeconfig": self.root / "kubeconfig", "root": self.root,
            "kubelet_socket": self.kubelet.socket, "plugins": self.kubelet.directory,
            "port": self.metrics_port,
        }  # fmt: skip
        command = [str(self.peer.program.resolve())]
        try:
            command += [word.format(**places) for word in shlex.split(self.peer.words)]
        except (KeyError, IndexError, ValueError) as error:
            raise BenchError(f"--peer-plugin-words {self.peer.words!r}: {error!r}") from None
        if has_namespaces():
            there = IN_NAMESPACE.format(
                kubelet=DEVICE_PLUGINS, plugins=shlex.quote(str(self.kubelet.directory))
            )
            command = ["unshare", "--mount", "sh", "-c", there, "sh", *command]
        environ = self._agent_environment() | {
            "NODE_NAME": self.name,
            "KUBECONFIG": str(self.root / "kubeconfig"),
            "HOOK_PATH": str(self.root / "host"),
        }
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environ
            )


@dataclass
class Allocations:
    """What each of a row of pods took: milliseconds, and requests to the API server."""

    took_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


def allocations(node: SimNode, pods: int) -> Allocations:
    """Schedule, admit and remove pods, one after the other. Raises RuntimeError if one is refused."""
    found = Allocations()
    for number in range(pods):
        name = f"pod-{number}"
        asks = [Ask(memory_mib=100, core_percent=0)]
        uid = node.create_pod(name, asks)
        node.place_pod(name, asks)
        time.sleep(0.02)  # kubelet, too, hears of a pod after a watch event
        mark = len(node.api.requests())
        spec = PodSpec(uid, "team", name, [ContainerSpec("main", {RESOURCE: 1})])
        began = time.perf_counter()
        result = node.kubelet.admit(spec)
        found.whole_ms.append((time.perf_counter() - began) * 1e3)
        if not result.ok:
            raise RuntimeError(result.message)
        found.took_ms.append(node.kubelet.history("allocated")[-1].detail["took_s"] * 1e3)
        made = [r.verb for r in node.api.requests()[mark:] if r.verb != "watch"]
        found.writes.append(sum(verb in ("patch", "post", "put", "delete") for verb in made))
        found.reads.append(sum(verb in ("get", "list") for verb in made))
        node.kubelet.remove(uid)
        node.client.ask("DELETE", f"/api/v1/namespaces/team/pods/{name}")
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of a process and of those that it has started."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        parents.setdefault(parent, []).append(int(status.parent.name))
    pages, todo = 0, [pid]
    while todo:
        one = todo.pop()
        pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        todo += parents.get(one, [])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def measured(node: SimNode, name: str) -> Iterator[Row]:
    """One plugin on a node of its own, which does not run yet. Raises what goes wrong there."""
    started: list[float] = []
    for number in range(STARTS):
        began = time.perf_counter()
        node.start_agent()
        node.wait("registration", lambda: node.allocatable() > 0)
        started.append(time.perf_counter() - began)
        if number < STARTS - 1:
            node.stop_agent()
            node.kubelet.stop()  # or it keeps what has registered for minutes
            node.kubelet.start()
    yield row(AREA, f"start to registered, {name}", started, "s")
    node.wait("annotations", lambda: any("register" in key for key in node.annotations()))
    assert node.agent is not None
    yield row(AREA, f"resident, registered, {name}", [resident_mib(node.agent.pid)], "MiB")
    found = allocations(node, PODS)
    yield row(AREA, f"Allocate p50, {name}", found.took_ms, "ms")
    yield row(AREA, f"Allocate p99, {name}", found.took_ms, "ms",
              value=percentile(found.took_ms, 99))  # fmt: skip
    yield row(AREA, f"API writes per Allocate, {name}", found.writes, "")
    yield row(AREA, f"API reads per Allocate, {name}", found.reads, "")
    yield row(AREA, f"resident, after {PODS} pods, {name}", [resident_mib(node.agent.pid)], "MiB")
    mark = len(node.api.requests())
    time.sleep(IDLE_S)
    made = len(node.api.requests()) - mark
    yield row(AREA, f"API requests a minute, idle, {name}", [made * 60 / IDLE_S], "")


def plugin_area(peer: Peer | None, ours: Sequence[str] = FROM_SOURCE) -> Iterator[Row]:
    """Ours and the peer's plugin: time to registration, Allocate, memory, API requests."""
    if peer is None:
        return
    with a_node(started=False, command=ours) as node:
        yield from measured(node, "ours")
    with a_node(started=False, kind=PeerNode) as node:
        assert isinstance(node, PeerNode)
        node.peer = peer
        try:
            yield from measured(node, f"the peer ({peer.program.name})")
        except (RuntimeError, OSError, AssertionError) as error:
            log = "\n".join(node.log_text().splitlines()[-15:])
            print(f"the peer: {error}\n{log}", file=sys.stderr)
            yield row(AREA, f"broke off: {type(error).__name__}: {error}, the peer", [1], "")


def peer_named(
    given: Path | None, words: str | None, environ: Mapping[str, str] = os.environ
) -> Peer | None:
    """The peer, by flags or by VGPU_BENCH_PEER_PLUGIN(_WORDS). Raises BenchError."""
    named = environ.get("VGPU_BENCH_PEER_PLUGIN")
    path = given or (Path(named) if named else None)
    told = environ.get("VGPU_BENCH_PEER_PLUGIN_WORDS", "") if words is None else words
    return Peer(path, told) if path else None
