"""What happens in the demo, step by step, and what each step proves.

Everything is observed from outside the agent: kubelet's books, the Node and Pod objects, and what
processes in the containers are told by CUDA.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent.demo import deadline
from agent.demo.operator import STOLEN_MIB, Operator, thief
from agent.demo.screen import Check, GpuRow, Screen, TenantRow, View
from agent.sim.container import Container, ContainerError, SimMount
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.proc import SimProc
from agent.sim.scheduler import BIND_PHASE, LOCK, TO_ALLOCATE, NodeLocked, NoFit

BUSY_PERCENT = 40  # containers with less would take long
KERNEL_US, KERNELS = 2000, 150  # 300 ms of GPU time
RAISED_MIB = 512
SPARE_PERCENT = 5  # what an idle container has saved up weighs more in so short a time
MODEL, MEMORY_MIB, GPUS, SPLIT = "NVIDIA A40", 46068, 2, 10
PODS: dict[str, list[Ask]] = {
    "train": [Ask(memory_mib=30000, core_percent=60)],
    "notebook": [Ask(memory_mib=8000, core_percent=10)],
    "serve": [
        Ask(name="model", memory_mib=16000, core_percent=40),
        Ask(name="cache", memory_mib=4000, core_percent=5),
    ],
    "etl": [
        Ask(name="fetch", memory_mib=2000, core_percent=5, kind="init"),
        Ask(name="main", memory_mib=12000, core_percent=20),
    ],
}


@dataclass(slots=True)
class Tenant:
    """A container that runs: the process, and what was decided for it."""

    pod: RanPod
    name: str
    gpu_uuid: str
    limit_mib: int
    core_percent: int
    container: Container
    used_mib: int = 0
    refused: int = 0


@dataclass(slots=True)
class Story:
    """The demo. `tell()` runs it; `checks` is what came out."""

    node: SimNode
    screen: Screen
    proc: SimProc  # as the agent sees it
    began_s: float = field(default_factory=time.monotonic)
    checks: list[Check] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)

    def steps(self) -> Sequence[tuple[str, Callable[[], str]]]:
        """What happens, in order, each with what it proves."""
        return (
            ("node registered", self.register),
            ("pods placed", self.place_pods),
            ("every container has its share", self.compare_shares),
            ("memory limit enforced", self.push_limits),
            ("core limit enforced", self.push_cores),
            ("use shown", self.show_use),
            ("limit changed live", self.change_limit),
            ("bypass caught", self.catch_bypass),
            ("bookkeeping finished", self.look_at_bookkeeping),
            ("kubelet restart survived", self.restart_kubelet),
            ("sick GPU taken out", self.break_gpu),
            ("GPU recovered", self.heal_gpu),
            ("clean stop", self.stop_agent),
        )

    def tell(self) -> None:
        """Run all steps; a step that fails is a failed check and the story goes on if it can."""
        for name, step in self.steps():
            check, hung = checked(name, step, self.began_s)
            self.checks.append(check)
            if step == self.stop_agent:  # after it there is nothing to see but an empty node
                self.screen.leave_standing()
                self.screen.check(check)
                return
            self.screen.check(check)
            self.show(settled=name in SHOWN_AFTER)
            self.screen.linger()
            if hung or (not check.passed and name in ("node registered", "pods placed")):
                return

    def end(self) -> None:
        """Stop the containers."""
        for tenant in self.tenants:
            tenant.container.stop()

    # --- steps: each gives a sentence, or raises ------------------------------------------------

    def register(self) -> str:
        for number in range(GPUS):
            self.node.driver.add_gpu(
                number, SimGpu(uuid=made_up_uuid(number), name=MODEL, memory_mib=MEMORY_MIB)
            )
        self.node.start_agent()
        self.node.wait("kubelet counts the vGPUs", lambda: self.node.allocatable() == GPUS * SPLIT)
        self.node.wait("the agent is ready", self.node.ready)
        self.wait_for_scheduler()
        seen = len(self.health_at_scheduler())
        must(seen == GPUS, f"the scheduler reads {seen} GPUs instead of {GPUS}")
        return f"{GPUS * SPLIT} {self.node.resource} at kubelet, {seen} GPUs at the scheduler"

    def place_pods(self) -> str:
        for name, asks in PODS.items():
            self.run(name, asks)
        isolated = all(tenant.container.isolated for tenant in self.tenants)
        how = "in namespaces" if isolated else "without namespaces (not allowed here)"
        return f"{len(PODS)} pods, {len(self.tenants)} containers, real processes {how}"

    def run(self, name: str, asks: Sequence[Ask]) -> RanPod:
        """Place a pod and start its app containers with exactly what Allocate returned."""
        pod = self.node.run_pod(name, asks)
        must(pod.admitted.ok, f"{name}: {pod.admitted.message}")
        order = [ask for ask in asks if ask.kind != "app"] + [a for a in asks if a.kind == "app"]
        for ask, claims in zip(order, pod.claims, strict=True):
            grant = pod.admitted.containers[ask.name]
            if ask.kind == "init":
                continue  # it would have ended before the others start
            container = Container.start(
                f"{name}-{ask.name}",
                driver=self.node.driver,
                env=grant.env,
                mounts=[SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
            )
            mounts = container.mounts
            self.proc.add(container.pid, pod_uid=pod.uid, container=ask.name, mounts=mounts)
            self.tenants.append(
                Tenant(
                    pod,
                    ask.name,
                    claims[0].uuid,
                    claims[0].memory_mib,
                    claims[0].core_percent,
                    container,
                )
            )
            self.show()
        return pod

    def compare_shares(self) -> str:
        for tenant in self.tenants:
            answer = tenant.container.ask("info")
            inside = [(device.uuid, device.total_mib) for device in answer.devices]
            expected = [(tenant.gpu_uuid, tenant.limit_mib)]
            must(inside == expected, f"{tenant.name} sees {inside}, decided was {expected}")
        return "each container sees only its own share of the GPU"

    def push_limits(self) -> str:
        for tenant in self.tenants:
            share = tenant.limit_mib * 3 // 4
            must(tenant.container.ask(f"alloc {share}").ok, f"{tenant.name} may not use its share")
            answer = tenant.container.ask(f"alloc {tenant.limit_mib - share + 1}")
            must(not answer.ok, f"{tenant.name} got 1 MiB more than its {tenant.limit_mib} MiB")
            must(
                tenant.container.ask(f"alloc {tenant.limit_mib - share}").ok,
                f"{tenant.name} cannot use its last MiB",
            )
            self.look(tenant)
            self.show()
        refused = sum(tenant.refused for tenant in self.tenants)
        return f"{refused} times 1 MiB too much was refused"

    def push_cores(self) -> str:
        """Kernels take time for this step only; the containers compute one after the other."""
        self.node.driver.kernel_us(KERNEL_US)
        said = []
        for tenant in [t for t in self.tenants if t.core_percent >= BUSY_PERCENT]:
            tenant.container.ask(f"launch {KERNELS // 5}")  # it learns how long they take
            began_s = time.monotonic()
            must(tenant.container.ask(f"launch {KERNELS}").ok, f"{tenant.name} cannot compute")
            took_s = time.monotonic() - began_s
            percent = KERNELS * KERNEL_US / 1e6 / took_s * 100
            must(
                percent <= tenant.core_percent + SPARE_PERCENT,
                f"{tenant.name} got {percent:.0f} % of the GPU's time instead of "
                f"{tenant.core_percent} %",
            )
            said.append(f"{percent:.0f} of {tenant.core_percent} %")
        self.node.driver.kernel_us(0)
        return f"GPU time got, of the limit: {', '.join(said)} (idle from here on)"

    def show_use(self) -> str:
        """What an operator sees with `top`, compared with what the containers hold."""
        held = {f"{t.pod.name}/{t.name}": (t.used_mib, t.used_mib) for t in self.tenants}
        operator = Operator(self.node)
        self.node.wait(
            "top shows what the containers hold",
            lambda: held.items() <= operator.used_mib().items(),
        )
        self.screen.exhibit("vgpu-agent top --once", operator.top())
        return f"{len(held)} containers, by their own count as by the driver's"

    def change_limit(self) -> str:
        """Give a container that runs more memory, and then less than it holds."""
        tenant = next(t for t in self.tenants if t.name == "cache")
        target, more_mib = f"{tenant.pod.name}/{tenant.name}", tenant.limit_mib + RAISED_MIB
        Operator(self.node).limit(target, "--memory", f"{more_mib}Mi")
        if not tenant.container.isolated:
            return (
                f"{target} {tenant.limit_mib} -> {more_mib} MiB; its effect cannot be shown here, "
                "because the file that says so is mounted, which takes namespaces"
            )
        must(
            tenant.container.ask(f"alloc {RAISED_MIB}").ok, f"{target} cannot use what it was given"
        )
        must(not tenant.container.ask("alloc 1").ok, f"{target} got 1 MiB more than {more_mib} MiB")
        said = Operator(self.node).limit(target, "--memory", f"{tenant.limit_mib}Mi")
        over = f"over by {RAISED_MIB} MiB"
        must(over in said, f"`limit` does not say {over!r}, but: {said}")
        self.look(tenant)
        return f"{target} {tenant.limit_mib} -> {more_mib} MiB and back, then {over}"

    def catch_bypass(self) -> str:
        """A process of a pod without any vGPU takes memory behind the agent's back."""
        operator = Operator(self.node)
        must(operator.bypasses() == [], "somebody is accused who keeps to his grant")
        uid = self.node.create_pod("thief", [], node_name=self.node.name)
        container = thief(self.node)
        try:
            self.proc.add(container.pid, pod_uid=uid, container="main")
            self.node.wait("the bypass is found", lambda: "thief" in operator.bypasses())
            self.node.wait("its pod is told", lambda: "VgpuBypass" in self.reasons("thief"))
        finally:
            container.stop()
        self.node.wait("it is over", lambda: operator.bypasses() == [])
        return f"{STOLEN_MIB} MiB taken without a grant: reported, with an Event on its pod"

    def reasons(self, pod: str) -> list[str]:
        """Reasons of the Events about a pod."""
        return [e["reason"] for e in self.node.events() if e["involvedObject"]["name"] == pod]

    def look_at_bookkeeping(self) -> str:
        lock, bind_phase, to_allocate = self.keys
        must(lock not in self.node.annotations(), "the node is still locked")
        for pod in {tenant.pod.uid: tenant.pod for tenant in self.tenants}.values():
            annotations = self.node.pod_annotations(pod.namespace, pod.name)
            must(annotations[bind_phase] == "success", f"{pod.name}: {annotations[bind_phase]}")
            left = annotations[to_allocate]
            must("NVIDIA" not in left, f"{pod.name} still has {left} to allocate")
        return "node unlocked, no claim left over"

    def restart_kubelet(self) -> str:
        before_restart, counted = self.health_at_scheduler(), self.node.kubelet.told
        self.node.kubelet.restart()
        self.node.wait("kubelet counts the vGPUs", lambda: self.node.kubelet.told == counted)
        for tenant in self.tenants:
            before = tenant.used_mib
            self.look(tenant)
            must(tenant.used_mib == before, f"{tenant.name} lost memory in the restart")
        self.node.wait(
            "the scheduler reads the GPUs again",
            lambda: self.health_at_scheduler() == before_restart,
        )
        self.run("after-restart", [Ask(memory_mib=1000, core_percent=1)])
        return "containers untouched, a new pod served"

    def break_gpu(self) -> str:
        self.node.driver.lost(0)  # or it would recover while we look
        self.node.driver.xid(0, 79)
        self.node.wait("kubelet hears of it", lambda: self.node.allocatable() == (GPUS - 1) * SPLIT)
        self.node.wait(
            "the scheduler hears of it", lambda: self.health_at_scheduler() == [False, True]
        )
        self.show(settled=True)
        self.screen.linger()
        pod = self.run("after-xid", [Ask(memory_mib=500, core_percent=1)])
        uuid = pod.claims[0][0].uuid
        must(uuid == made_up_uuid(1), f"the new pod was placed on the sick GPU {uuid}")
        return "XID 79 on GPU 0, a new pod went to GPU 1"

    def heal_gpu(self) -> str:
        self.node.driver.lost(0, lost=False)
        self.node.wait("all vGPUs are back", lambda: self.node.allocatable() == GPUS * SPLIT)
        return "by clean probes, without a restart"

    def stop_agent(self) -> str:
        code = self.node.stop_agent()
        must(code == 0, f"the agent ended with exit code {code}")
        return "SIGTERM, exit code 0"

    # --- what schedulers differ in --------------------------------------------------------------

    @property
    def keys(self) -> tuple[str, str, str]:
        """Annotations: the node's lock, a pod's phase, and what it still has to allocate."""
        return LOCK, BIND_PHASE, TO_ALLOCATE

    def wait_for_scheduler(self) -> None:
        """Wait until what the scheduler goes by is there; HAMi's looks at once."""

    def health_at_scheduler(self) -> list[bool]:
        """Whether the GPUs that the scheduler reads of the node are healthy."""
        self.node.scheduler.handshake_once(self.node.name)
        return [gpu.healthy for gpu in self.node.scheduler.nodes.get(self.node.name, [])]

    # --- looking ----------------------------------------------------------------------------

    def look(self, tenant: Tenant) -> None:
        """Ask a container what it holds."""
        answer = tenant.container.ask("info")
        tenant.used_mib, tenant.refused = answer.held_mib, answer.refused

    def show(self, *, settled: bool = False) -> None:
        """Draw the present state."""
        self.screen.show(self.view(), settled=settled)

    def view(self) -> View:
        """The present state: health as kubelet has it, containers as they told us."""
        kubelet = self.node.kubelet.resources.get(self.node.resource)
        healthy = kubelet.healthy if kubelet else frozenset()
        gpus = tuple(
            GpuRow(
                index=number,
                name=MODEL,
                healthy=any(device.startswith(uuid) for device in healthy),
                # Not kubelet's ids: it gives an app container those of an init container again.
                vgpus_in_use=sum(tenant.gpu_uuid == uuid for tenant in self.tenants),
                vgpus=SPLIT,
                memory_mib=MEMORY_MIB,
                used_mib=sum(t.used_mib for t in self.tenants if t.gpu_uuid == uuid),
            )
            for number, uuid in ((number, made_up_uuid(number)) for number in range(GPUS))
        )
        tenants = tuple(
            TenantRow(
                pod=tenant.pod.name,
                container=tenant.name,
                gpu_index=next((g for g in range(GPUS) if made_up_uuid(g) == tenant.gpu_uuid), -1),
                limit_mib=tenant.limit_mib,
                used_mib=tenant.used_mib,
                refused=tenant.refused,
            )
            for tenant in self.tenants
        )
        return View(gpus, tenants)


FAILURES = (
    *(AssertionError, OSError, RuntimeError, subprocess.SubprocessError),
    *(ContainerError, NoFit, NodeLocked, deadline.HungError),
)
SHOWN_AFTER = ("memory limit enforced", "GPU recovered")


def checked(name: str, step: Callable[[], str], began_s: float) -> tuple[Check, bool]:
    """Do one step of a story that began then: what came of it, and whether it hung."""
    hung = False
    try:
        with deadline.within(deadline.STEP_S):
            detail, passed = step(), True
    except FAILURES as error:
        detail, passed = f"{type(error).__name__}: {error}", False
        hung = isinstance(error, deadline.HungError)
    at_s = time.monotonic() - began_s
    return Check(name=name, passed=passed, detail=detail, at_s=at_s), hung


def must(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with a sentence unless it holds; unlike `assert`, under -O too."""
    if not holds:
        raise AssertionError(otherwise)
