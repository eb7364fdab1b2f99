"""A node of which many days pass in minutes: time is told to pass, files are real.

Pods come and go as in the random histories (tests/wire/history_world.py): a scheduler, a kubelet
and another vendor's plugin act on an API server in memory, the agent crashes and starts again. Here
the agent's directories, limits, usage regions, journal and ledger are on a disk, and whatever looks
at them now and again does so: cleaning up, accounting, feedback, metrics, health, registration.
"""

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent.adapters.caches import HostCaches
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.metrics import Metrics
from agent.adapters.region_reader import HostRegionReader
from agent.adapters.region_switches import HostRegionSwitches
from agent.adapters.totals_file import TotalsFile
from agent.domain.accounting import GpuUse
from agent.domain.enforcement import ContainerState
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import Claim
from agent.domain.ownership import HeldDevice, Rival
from agent.domain.pods import Pod
from agent.errors import NvmlError
from agent.ports import CacheDir, ContainerKey, Held, KubeletAssignment
from agent.services.accounting import Accounting, Books
from agent.services.cache_gc import CacheGc
from agent.services.enforcement import NOBODY
from agent.services.feedback import Feedback, Levers
from agent.services.health import Health
from agent.services.metering import GpuLook, Metering
from agent.services.ownership import Ownership
from agent.services.plugin import PluginStatus
from agent.services.published import Published
from agent.services.reconcile import Reconcile
from agent.services.registrar import Registrar
from agent.services.roster import Roster
from agent.version import VERSION
from tests.unit.fake_nvml import FakeNvml
from tests.unit.fakes import GPU_A, GPU_B, CrashError, Process
from tests.wire.history_world import Chances, World

DAY_S, ROUND_S = 86_400.0, 600.0
GC_AFTER_S = 300.0
STEPS_PER_ROUND = 40
MOST_IDS = 120  # of 400; above, pods end before others begin
MOST_MIB = 2000  # far more sizes than containers
NODE_GPUS = (GPU_A, GPU_B)
CHANCES = Chances(
    error=0.002, crash=0.002, watch=0.5, other_vendor=0.05, rejected=0.01, repeated=0.05
)
XIDS = (13, 31, 43, 48, 63, 79, 94, 119)
RESOURCE = "nvidia.com/gpu"


class Disk(HostCaches):
    """The host's directories; their age is told by the node's clock, not by the file system's."""

    def __init__(self, root: Path, clock: Callable[[], float], made_at_s: dict[str, float]) -> None:
        super().__init__(root / "vgpu", lock_dir=root / "lock")
        self._clock = clock
        self._made_at_s = made_at_s

    def create(self, pod_uid: str, container: str) -> Path:
        self._made_at_s[f"{pod_uid}_{container}"] = self._clock()
        return super().create(pod_uid, container)

    def listed(self) -> tuple[CacheDir, ...]:
        names = {one.name for one in super().listed()}
        for name in self._made_at_s.keys() - names:
            del self._made_at_s[name]
        return tuple(CacheDir(name, self._made_at_s[name]) for name in sorted(names))

    @property
    def directories(self) -> frozenset[str]:
        """Names of all containers' directories."""
        return frozenset(one.name for one in self.listed())


class NoGuard:
    """Nobody outlives this process."""

    def hold(self, held: Mapping[ContainerKey, Held]) -> bool:
        return not held


class Answering(Metering):
    """A driver that answers at once and tells of nobody."""

    def __init__(self) -> None:
        self.looks = Published(GpuLook())

    def ask(self, *, within_s: float) -> GpuLook:
        del within_s
        gpus = tuple(
            GpuUse(
                uuid=uuid,
                index=number,
                name="NVIDIA A40",
                memory_used_bytes=0,
                memory_total_bytes=46068 << 20,
                utilisation_percent=0,
                memory_utilisation_percent=0,
            )
            for number, uuid in enumerate(NODE_GPUS)
        )
        return GpuLook(gpus=gpus, problem="", answers=1)


class Told:
    """What /metrics looks at (`metrics.Scraped`)."""

    def __init__(self, node: "SoakNode") -> None:
        self._node = node

    def inventory(self) -> GpuInventory:
        return self._node.agent.inventory.now()

    def service_restarts(self) -> Mapping[str, int]:
        return {}

    def registered(self) -> Mapping[str, bool]:
        return {RESOURCE: True}

    def rivals(self) -> tuple[Rival, ...]:
        return self._node.ownership.found.now()

    def cache_directories(self) -> int:
        return len(self._node.caches.directories)

    def containers(self) -> tuple[ContainerState, ...]:
        return ()


class SoakNode(World):
    """Days pass by `day()`; what must hold is asserted at the end of each."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.lives = 0
        self.down = False  # the API server
        self.made_at_s: dict[str, float] = {}
        self.kubelet_restarts = self.api_restarts = self.gpu_faults = 0
        self.served = self.refusals = 0
        (root / "vgpu").mkdir(parents=True)
        (root / "vgpu" / "libvgpu.so").write_bytes(b"\x7fELF")
        self.nvml = FakeNvml(
            *(Gpu(uuid=u, index=n, name="NVIDIA A40", memory_mib=46068, minor=n)
              for n, u in enumerate(NODE_GPUS))
        )  # fmt: skip
        super().__init__(random.Random(seed), CHANCES)  # noqa: S311 - can be repeated

    # --- the agent's lives

    def start(self) -> None:
        """A new life of the agent, on what the last one left on disk."""
        self.lives += 1
        if self.lives > 1:
            self.switches.close()
        self.caches: Any = Disk(self.root, self.clock, self.made_at_s)
        self.grant_log: Any = FileGrantLog(self.root / "state")
        self.grant_log.reload()
        self.limits = HostLiveLimits(self.root / "vgpu", self.root / "state")
        self.limits.mend()
        self.agent = Process(self.cluster, self.caches, self.grant_log, clock=self.clock)
        with suppress(Exception):
            self.agent.relist()
        self._wire()

    def _wire(self) -> None:
        agent, clock = self.agent, self.clock
        self.health = Health(self.nvml, agent.inventory, clock=clock)
        self.registrar = Registrar(
            self.cluster, agent.inventory, agent.own_node, Sharing(), clock=clock, now=clock,
            jitter=lambda: 0.5,
        )  # fmt: skip
        self.gc = CacheGc(self.caches, self.grant_log, agent.pods, after_s=GC_AFTER_S, now_s=clock)
        self.reconcile = Reconcile(
            RESOURCE, self.grant_log, self, agent.pods, Published(PluginStatus(resource=RESOURCE)),
            clock=clock, wall_clock=clock,
        )  # fmt: skip
        self.ownership = Ownership(self, agent.inventory, [RESOURCE], withhold=self.health.withhold)
        self.accounting = Accounting(
            Books(
                grants=self.grant_log,
                pods=agent.pods,
                regions=HostRegionReader(self.root / "vgpu"),
                limits=self.limits,
                states=Published(()),
                seen=Published(NOBODY),
            ),
            Answering(),
            TotalsFile(self.root / "state"),
            now_s=clock,
            clock=clock,
        )
        self.switches = HostRegionSwitches(self.root / "vgpu")
        self.feedback = Feedback(
            Roster(self.switches, self.limits, agent.pods),
            Levers(switches=self.switches, leases=self.limits, guard=NoGuard()),
        )
        self.metrics = Metrics(VERSION, Told(self), use=self.accounting.use.now)

    # --- what kubelet says: ports.PodResources, ports.NodeDevices

    def assignments(self) -> tuple[KubeletAssignment, ...]:
        return tuple(
            KubeletAssignment(pod.namespace, pod.name, name, RESOURCE, ids)
            for (uid, name), ids in self.answered_ids.items()
            if uid in self.in_use and (pod := self.cluster.pods.get(uid)) is not None
        )

    def held(self) -> tuple[HeldDevice, ...]:
        return tuple(
            HeldDevice(f"{one.namespace}/{one.pod_name}/{one.container}", one.resource, device)
            for one in self.assignments()
            for device in one.device_ids
        )

    def offered(self) -> Mapping[str, tuple[str, ...]]:
        return {RESOURCE: tuple(f"{gpu}-0" for gpu in NODE_GPUS)}

    def other_plugins(self) -> tuple[str, ...]:
        return ()

    # --- time

    def timestamp(self) -> str:
        """As a scheduler writes it into the node's lock, on any day."""
        begun = dt.datetime(2025, 10, 20, tzinfo=dt.UTC)
        now = begun + dt.timedelta(seconds=int(self.clock.now_s))
        return now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def judge(self, effect: str) -> str | None:
        """An API server that is down answers nothing; else as in the histories."""
        api = effect in (
            "list pods",
            "get node",
            "erase",
            "patch phase",
            "patch node",
            "remove lock",
        )
        if self.down and api:
            return "error"
        return super().judge(effect)

    def pass_time(self, seconds: float) -> None:
        """As in the histories, with longer strides while nothing happens."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self.clock.now_s += 0.5 if seconds < 60 else 5.0
            self.lag()
            self._guarded(self.agent.finisher.step_once)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except CrashError:
            self.crashes += 1
            self.start()
        except NvmlError:
            pass

    def round(self) -> None:
        """Ten minutes: pods come and go, then every loop of the agent has its turn."""
        roll = self.rng.random()
        if roll < 0.02:
            self.gpu_faults += 1
            self.nvml.xid(self.rng.choice(NODE_GPUS), self.rng.choice(XIDS))
        elif roll < 0.03:
            self.api_restarts += 1
            self.down = True
        elif roll < 0.04:
            self.kubelet_restarts += 1
            self._ask_again()
        elif roll < 0.045:
            self.start()  # somebody restarted the agent
        self.run(STEPS_PER_ROUND)
        self.pass_time(ROUND_S / 2)
        if self.down:
            self.down = False
            self.agent.relist()  # what a watch does that was cut
        self.pass_time(ROUND_S / 2)
        for step in self._steps():
            self._guarded(step)

    def _steps(self) -> Iterator[Callable[[], object]]:
        """Every loop's, of whichever life it is by then: one may end in any of them."""
        yield lambda: self.health.step_once(0.0)
        yield self.registrar.step_once
        yield self.gc.collect_once
        yield self.reconcile.compare_once
        yield self.ownership.look_once
        yield self.feedback.round_once
        yield self.accounting.look_once

    def claim(self) -> Claim:
        """Of a size that no other container on the node has, and that the card has."""
        self.memory %= MOST_MIB
        return super().claim()

    def admit(self) -> None:
        while sum(len(ids) for ids in self.in_use.values()) > MOST_IDS:
            self.finish_or_delete()
        super().admit()

    def _ask_again(self) -> None:
        """A kubelet that restarts asks for containers that run; ids of one container only."""
        asked = Counter((key[0], ids) for key, ids in self.answered_ids.items())
        for key in list(self.answered)[-20:]:
            if key[0] in self.in_use and asked[key[0], self.answered_ids[key]] == 1:
                self.repeat(key)

    def day(self) -> None:
        """A day, then rest: whoever waits is served, and everything is accounted for."""
        end_s = self.clock.now_s + DAY_S
        while self.clock.now_s < end_s:
            self.round()
        self.come_to_rest()
        self.check_all()
        self._check_books()
        self._forget_the_gone()

    # --- what must hold

    def may_be_forgotten(self, pod: Pod) -> bool:
        """Reconcile lets go of what has ended for good."""
        return pod.finished

    def _check_books(self) -> None:
        """With time to clean up, what is on disk is what is on the node."""
        self.clock.now_s += 2 * GC_AFTER_S
        self.agent.deliver()
        self.gc.collect_once()
        self.feedback.round_once()
        live = self.cluster.pods.keys()
        granted = {f"{r.pod_uid}_{r.container}" for r in self.grant_log.records()}
        assert {name.partition("_")[0] for name in self.caches.directories} <= live
        assert {name.partition("_")[0] for name in granted} <= live
        used = self.accounting.look_once()
        assert {one.pod_uid for one in used.containers} <= live
        text = self.metrics.render("")[0].decode()
        gone = [f'pod="{name}"' for name in self._gone_names() if f'pod="{name}"' in text]
        assert gone == []

    def _gone_names(self) -> list[str]:
        alive = {pod.name for pod in self.cluster.pods.values()}
        return [f"pod-{n}" for n in range(max(1, self.pods_made - 2000), self.pods_made + 1)
                if f"pod-{n}" not in alive]  # fmt: skip

    def _forget_the_gone(self) -> None:
        """What this test has written down of pods that are gone, so that only the agent can grow."""
        live = self.cluster.pods.keys()
        self.served += sum(key[0] not in live for key in self.answered)
        self.refusals += len(self.errors)
        for book in (self.scheduled, self.answered, self.answered_ids):
            for key in [key for key in book if key[0] not in live]:
                del book[key]  # type: ignore[attr-defined]
        self.refused = {key for key in self.refused if key[0] in live}
        self.interrupted = {key for key in self.interrupted if key[0] in live}
        self.in_use = {uid: ids for uid, ids in self.in_use.items() if uid in live}
        for log in (
            self.cluster.changes,
            self.cluster.requests,
            self.cluster.deadlines_s,
            self.cluster.events,
            self.faults.effects,
            self.errors,
            self.agent.outcomes,
        ):
            log.clear()  # fmt: skip
        self.agent.relist()
