"""A node, its cluster and the agent, for random histories.

A scheduler, a kubelet and another vendor's plugin act on a fake API server; the agent's Allocate
side sees it through watches that lag, suffers errors and crashes at any effect, and is started
again on what is on disk. Every claim has a memory size of its own, so a grant that is not the
container's own is told at once.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from agent.domain.claims import TO_ALLOCATE, decode_claims, encode_claims, pending
from agent.domain.grants import Claim
from agent.domain.matching import open_slots_left
from agent.domain.nodelock import decode_lock
from agent.domain.pods import Container, Pod
from agent.errors import AgentError
from agent.services.cache_gc import CacheGc
from agent.services.container_limits import cache_name
from tests.unit.fakes import (
    GPU_A,
    GPU_B,
    NODE,
    CrashError,
    FakeCaches,
    FakeClock,
    FakeCluster,
    FakeGrantLog,
    Faults,
    Process,
    lock_of,
)

OTHER_VENDOR = "hami.io/dcu-devices-to-allocate"
PHASE = "hami.io/bind-phase"
SHAPES = ("terminated", "app only", "missing empties", "padded")


@dataclass
class Chances:
    """How often what goes wrong, per effect or step."""

    error: float = 0.0
    crash: float = 0.0
    retried_after_crash: float = 0.5
    repeated: float = 0.1
    rejected: float = 0.0  # kubelet rejects a pod for reasons of its own, before or in between
    other_vendor: float = 0.0
    watch: float = 0.5  # a change reaches us before the next step


@dataclass
class World:
    """The node, its cluster and the agent's present life."""

    rng: random.Random
    chances: Chances
    clock: FakeClock = field(default_factory=FakeClock)
    bound: list[str] = field(default_factory=list)  # uids, in the order kubelet hears of them
    scheduled: dict[tuple[str, str], tuple[Claim, ...]] = field(default_factory=dict)
    answered: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    answered_ids: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    refused: set[tuple[str, str]] = field(default_factory=set)
    interrupted: set[tuple[str, str]] = field(default_factory=set)  # a crash while they waited
    waiting: list[Pod] = field(default_factory=list)  # not yet bound
    in_use: dict[str, set[str]] = field(default_factory=dict)
    crashes: int = 0
    errors: list[str] = field(default_factory=list)
    memory: int = 0
    pods_made: int = 0

    def __post_init__(self) -> None:
        self.faults = Faults()
        self.cluster = FakeCluster(self.faults)
        self.caches = FakeCaches(self.faults)
        self.grant_log = FakeGrantLog(self.faults)
        self.start()

    # --- the agent

    def start(self) -> None:
        """A new life of the agent on what the last one left."""
        self.agent = Process(self.cluster, self.caches, self.grant_log, clock=self.clock)
        self.agent.relist()

    def judge(self, effect: str) -> str | None:
        roll = self.rng.random()
        undoing = effect in ("discard directory", "drop grant", "mark answered")
        if roll < self.chances.crash:
            return "crash" if undoing else self.rng.choice(["crash", "crash after"])
        if roll < self.chances.crash + self.chances.error and not undoing:
            on_disk = effect in ("prepare", "create directory", "journal")
            # an answer of the API server may get lost; the disk takes back what it refuses
            return "error" if on_disk else self.rng.choice(["error", "error after"])
        return None

    def lag(self) -> None:
        """Let some of what happened reach the agent."""
        while self.rng.random() < self.chances.watch:
            self.agent.deliver(1)

    def pass_time(self, seconds: float) -> None:
        """The finisher's loop runs meanwhile; a crash there starts the agent anew."""
        end_s = self.clock.now_s + seconds
        while self.clock.now_s < end_s:
            self.clock.now_s += 0.5
            self.lag()
            try:
                self.agent.finisher.step_once()
            except CrashError:
                self.crashes += 1
                self.start()

    # --- pods and their scheduler

    def claim(self) -> Claim:
        self.memory += 1
        return Claim(
            self.rng.choice([GPU_A, GPU_B]), "NVIDIA", self.memory, self.rng.choice([0, 30])
        )

    def containers(self) -> tuple[Container, ...]:
        rng = self.rng

        def some(kind: str, most: int, wants: float) -> Iterator[Container]:
            for place in range(rng.randint(0, most)):
                vgpus = rng.choice([1, 1, 1, 2]) if rng.random() < wants else 0
                yield Container(name=f"{kind}-{place}", kind=kind, vgpus=vgpus)

        while True:
            init = [*some("init", 2, 0.5), *some("sidecar", 1, 0.3)]
            rng.shuffle(init)
            made = (*init, *some("app", 3, 0.7))
            if any(c.vgpus for c in made) and any(c.kind == "app" for c in made):
                return made

    def annotation(self, containers: tuple[Container, ...], uid: str) -> str:
        """What a scheduler writes for these containers, in one of the shapes that are about."""
        slots = []
        for container in containers:
            claims = tuple(self.claim() for _ in range(container.vgpus))
            if claims:
                self.scheduled[uid, container.name] = claims
            slots.append(claims)
        shape = self.rng.choice(SHAPES)
        in_init = any(c.vgpus for c in containers if c.kind != "app")
        if shape == "app only" and not in_init:
            apps = [s for s, c in zip(slots, containers, strict=True) if c.kind == "app"]
            return encode_claims(apps)
        if shape == "missing empties":
            return encode_claims(slot for slot in slots if slot)
        if shape == "padded" and not slots[-1]:
            return encode_claims(slots[:-1]) + ",,0,0:;"
        return encode_claims(slots)

    def make_pod(self) -> None:
        self.pods_made += 1
        name, containers = f"pod-{self.pods_made}", self.containers()
        uid = f"uid-{self.pods_made}"
        annotations = {TO_ALLOCATE: self.annotation(containers, uid), "hami.io/vgpu-node": NODE}
        if self.rng.random() < self.chances.other_vendor:
            annotations[OTHER_VENDOR] = "DCU-1,DCU,100,10:;"
        self.waiting.append(
            Pod(
                namespace="team",
                name=name,
                uid=uid,
                phase="Pending",
                annotations=annotations,
                containers=containers,
            )
        )

    def bind(self) -> None:
        """HAMi's Bind: lock the node (for app containers only), set the phase, bind."""
        if not self.waiting:
            return
        pod = self.waiting[0]
        if any(c.vgpus for c in pod.containers if c.kind == "app"):
            if self.cluster.lock_value is not None and not self.lock_owner_is_gone():
                return
            self.cluster.lock(lock_of(pod, self.timestamp()))
        self.waiting.pop(0)
        bound = pod.with_annotations({PHASE: "allocating", "hami.io/bind-time": self.bind_time()})
        self.cluster.put(replace(bound, node_name=NODE))
        self.bound.append(pod.uid)

    def bind_time(self) -> str:
        return str(1760929622 + int(self.clock.now_s))

    def timestamp(self) -> str:
        minutes, seconds = divmod(int(self.clock.now_s), 60)
        hours, minutes = divmod(minutes + 7, 60)
        return f"2025-10-20T{3 + hours:02}:{minutes:02}:{(seconds + 2) % 60:02}Z"

    def other_plugin(self) -> None:
        """The plugin of the other vendor serves whom it finds, and ends binds as HAMi's does."""
        for pod in list(self.cluster.pods.values()):
            if pod.annotations.get(OTHER_VENDOR, ";") == ";" or pod.phase != "Pending":
                continue
            if self.rng.random() < 0.5:
                served = self.cluster.annotate(pod.uid, {OTHER_VENDOR: ";"})
                if "NVIDIA" not in served.annotations[TO_ALLOCATE]:
                    self.cluster.annotate(pod.uid, {PHASE: "success"})
                    lock = decode_lock(self.cluster.lock_value)
                    if lock is not None and lock.names(pod):
                        self.cluster.lock(None)

    # --- kubelet

    def admit(self) -> None:
        """Admit the next pod: its containers one by one, each with one Allocate."""
        if not self.bound:
            return
        uid = self.bound.pop(0)
        pod = self.cluster.pods[uid]
        pool: list[str] = []
        used: set[str] = self.in_use.setdefault(uid, set())
        for container in pod.containers:
            if not container.vgpus:
                continue
            if self.rng.random() < self.chances.rejected:
                self.fail(uid)
                self.agent.deliver()
                return
            self.lag()
            ids = self.device_ids(container, pool)
            used.update(ids)
            if not self.ask(pod, container, ids):
                self.fail(uid)
                if uid not in self.agent.pods.now().pods:
                    self.agent.deliver()  # refused unseen: when we see it, it has failed
                return
            if container.kind == "init":
                pool += [device_id for device_id in ids if device_id not in pool]
            else:
                pool = [device_id for device_id in pool if device_id not in ids]
            if self.rng.random() < 0.3:
                self.pass_time(0.5)
        self.cluster.put(replace(self.cluster.pods[uid], phase="Running"))

    def device_ids(self, container: Container, pool: list[str]) -> tuple[str, ...]:
        """Kubelet's choice: those of finished init containers first, otherwise as we prefer."""
        reused = pool[: container.vgpus]
        if len(reused) == container.vgpus:
            return tuple(reused)
        taken = set().union(*self.in_use.values()) - set(pool)
        free = [f"{gpu}-{slot}" for gpu in (GPU_A, GPU_B) for slot in range(200)]
        free = [device_id for device_id in free if device_id not in taken]
        self.rng.shuffle(free)
        if self.rng.random() < 0.5:
            return tuple(reused + [i for i in free if i not in reused])[: container.vgpus]
        try:
            preferred = self.agent.preference.preferred(
                free, reused, container.vgpus, deadline_s=self.clock() + 2.0
            )
        except CrashError:
            self.crashes += 1
            self.start()
            return tuple(reused + [i for i in free if i not in reused])[: container.vgpus]
        assert len(preferred) == container.vgpus
        assert set(reused) <= set(preferred) <= set(free) | set(reused)
        return tuple(preferred)

    def ask(self, pod: Pod, container: Container, ids: tuple[str, ...]) -> bool:
        key = (pod.uid, container.name)
        shuffled = list(ids)
        self.rng.shuffle(shuffled)
        for _ in range(20):
            try:
                envs = self.agent.allocate(*shuffled)
            except AgentError as error:
                self.errors.append(str(error))
                self.refused.add(key)
                return False
            except CrashError:
                self.crashes += 1
                self.interrupted.add(key)
                given_up = self.cluster.pods[pod.uid].annotations[PHASE] == "failed"
                if not given_up and self.rng.random() < self.chances.retried_after_crash:
                    self.start()
                    continue
                self.fail(pod.uid)  # kubelet sees the connection break long before we are back
                self.start()
                return False
            self.check(key, envs)
            self.answered[key], self.answered_ids[key] = envs, tuple(sorted(ids))
            self.repeat(key)
            return True
        raise AssertionError("twenty crashes in a row")

    def check(self, key: tuple[str, str], envs: dict[str, str]) -> None:
        claims = self.scheduled[key]
        limits = [
            envs[name] for name in sorted(envs) if name.startswith("CUDA_DEVICE_MEMORY_LIMIT_")
        ]
        assert limits == [f"{claim.memory_mib}m" for claim in claims], key
        assert envs["NVIDIA_VISIBLE_DEVICES"] == ",".join(dict.fromkeys(c.uuid for c in claims))
        assert envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"].endswith(cache_name(*key))
        assert f"{key[0]}_{key[1]}" in self.caches.directories

    def repeat(self, key: tuple[str, str]) -> None:
        """Ask the same once more when nobody else waits: a slot that waits would go first."""
        pod = self.cluster.pods[key[0]]
        if self.bound or open_slots_left(pod) or self.rng.random() >= self.chances.repeated:
            return
        verdict, self.faults.verdict = self.faults.verdict, lambda _effect: None
        assert self.agent.allocate(*self.answered_ids[key]) == self.answered[key]
        self.faults.verdict = verdict

    def fail(self, uid: str) -> None:
        """UnexpectedAdmissionError: terminal."""
        self.cluster.put(replace(self.cluster.pods[uid], phase="Failed"))
        self.in_use.pop(uid, None)

    def finish_or_delete(self) -> None:
        settled = [p for p in self.cluster.pods.values() if p.uid not in self.bound]
        if not settled:
            return
        pod = self.rng.choice(settled)
        if pod.phase == "Running" and self.rng.random() < 0.5:
            self.cluster.put(replace(pod, phase="Succeeded"))
        else:
            self.cluster.delete(pod.uid)
        self.in_use.pop(pod.uid, None)

    # --- a history

    def run(self, steps: int) -> None:
        actions = [self.make_pod, self.bind, self.bind, self.admit, self.admit, self.other_plugin]
        self.faults.verdict = self.judge
        for _ in range(steps):
            roll = self.rng.random()
            if roll < 0.15:
                self.pass_time(self.rng.choice([0.5, 1.0, 4.0]))
            elif roll < 0.25:
                self.finish_or_delete()
            else:
                self.rng.choice(actions)()
            self.clock.now_s += self.rng.choice([0.0, 0.0, 0.01, 1.0])
            self.lag()

    def come_to_rest(self) -> None:
        """Nothing goes wrong any more: everybody who still waits is served."""
        self.faults.verdict = lambda _effect: None
        for _ in range(200):
            self.agent.deliver()
            self.other_plugin()
            self.pass_time(5.0)
            self.bind()
            self.admit()
            if not self.waiting and not self.bound:
                break
        self.agent.deliver()
        self.agent.settle(60.0)

    # --- what must hold

    def check_all(self) -> None:
        assert not self.waiting
        assert not self.bound
        assert self.cluster.lock_value is None or self.lock_owner_is_gone()
        live = self.cluster.pods
        journaled = {(r.pod_uid, r.container): r for r in self.grant_log.records() if r.answered}
        for key, envs in self.answered.items():
            if key[0] in live and not self.may_be_forgotten(live[key[0]]):
                assert journaled[key].grant.envs == envs
                assert journaled[key].claims == self.scheduled[key]
        assert set(journaled) <= set(self.answered) | self.interrupted
        for uid, name in self.refused - self.interrupted:
            assert f"{uid}_{name}" not in self.caches.directories
        for pod in live.values():
            if pod.phase in ("Running", "Succeeded"):
                assert pod.annotations[PHASE] == "success", pod.name
                assert not pending(decode_claims(pod.annotations[TO_ALLOCATE]))
        assert len(self.agent.finisher._open) == 0

    def may_be_forgotten(self, pod: Pod) -> bool:
        """Whether somebody who is not in these histories lets go of its grants."""
        del pod
        return False

    def lock_owner_is_gone(self) -> bool:
        """Only the scheduler may take the lock of a pod that exists no more."""
        lock = decode_lock(self.cluster.lock_value)
        return lock is not None and not any(lock.names(pod) for pod in self.cluster.pods.values())

    def check_the_end(self) -> None:
        """With all pods gone, nothing of them stays."""
        for uid in list(self.cluster.pods):
            self.cluster.delete(uid)
        self.agent.deliver()
        gc = CacheGc(
            self.caches, self.grant_log, self.agent.pods, now_s=lambda: self.clock() + 1000.0
        )
        gc.collect_once()
        assert not self.caches.directories
        assert not self.grant_log.records()
