"""The story of mode `slices`: no scheduler, no API server, only kubelet and the agent.

Everything is observed from outside the agent: kubelet's books, what processes in the containers are
told by CUDA, and the commands of an operator.
"""

import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.demo.operator import Operator
from agent.demo.screen import Check, GpuRow, Screen, TenantRow, View
from agent.demo.story import GPUS, MEMORY_MIB, MODEL, SPLIT, checked, must
from agent.sim.container import Container, SimMount
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.kubelet import ContainerSpec
from agent.sim.lone_node import LoneNode, StaticPod
from agent.sim.node import RESOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALL, LARGE = f"{RESOURCE}-small", f"{RESOURCE}-large"
SIZES = "small=8Gi:25,large=24Gi:50"
MIB_OF = {SMALL: 8192, LARGE: 24576, RESOURCE: MEMORY_MIB // SPLIT}


@dataclass(slots=True)
class Tenant:
    """A container that runs: the process, and what its slices add up to."""

    pod: StaticPod
    gpu_uuid: str
    limit_mib: int
    container: Container
    used_mib: int = 0
    refused: int = 0


@dataclass(slots=True)
class SlicesStory:
    """`tell()` runs it; `checks` is what came out."""

    node: LoneNode
    screen: Screen
    began_s: float = field(default_factory=time.monotonic)
    checks: list[Check] = field(default_factory=list)
    shares: str = "slices"  # what kubelet gives away
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def steps(self) -> "Sequence[tuple[str, Callable[[], str]]]":
        """What is shown, in order. The last one stops the agent."""
        return (
            ("node registered", self.register),
            ("equal slices add up", self.add_up),
            ("named sizes offered", self.offer_sizes),
            ("three containers have their size", self.run_three),
            ("memory limit enforced", self.push_limits),
            ("owners known from kubelet", self.show_use),
            ("what does not fit is not offered", self.fill_up),
            ("freed and given again", self.free),
            ("killed agent knows them again", self.kill_agent),
            ("clean stop", self.stop_agent),
        )

    def tell(self) -> None:
        """Run all steps; one that fails ends the story."""
        for name, step in self.steps():
            check, _ = checked(name, step, self.began_s)
            self.checks.append(check)
            if step == self.stop_agent:  # after it there is nothing to see but an empty node
                self.screen.leave_standing()
            self.screen.check(check)
            if not check.passed or step == self.stop_agent:
                return
            self.screen.show(self.view(), settled=step == self.push_limits)
            self.screen.linger()

    def end(self) -> None:
        """Stop the containers."""
        for tenant in self.tenants.values():
            tenant.container.stop()

    # --- steps: each gives a sentence, or raises ------------------------------------------------

    def add_gpus(self) -> None:
        """The node's cards."""
        for number in range(GPUS):
            self.node.driver.add_gpu(
                number, SimGpu(uuid=made_up_uuid(number), name=MODEL, memory_mib=MEMORY_MIB)
            )

    def register(self) -> str:
        self.add_gpus()
        self._start("--device-split-count", str(SPLIT))
        self._offered({RESOURCE: GPUS * SPLIT})
        return f"{GPUS * SPLIT} {RESOURCE} at kubelet; there is no API server and no scheduler"

    def add_up(self) -> str:
        tenant = self._run("hello", RESOURCE, 2)
        self._push(tenant)
        operator = Operator(self.node)
        self.node.wait("kubelet tells whose it is", lambda: "hello/main" in operator.used_mib())
        self._end("hello")
        return f"2 slices of {MIB_OF[RESOURCE]} MiB are one limit of {tenant.limit_mib} MiB"

    def offer_sizes(self) -> str:
        self.node.stop_agent()
        self._start(*self._flags())
        self._offered({SMALL: 4 * GPUS, LARGE: GPUS})
        return f"{4 * GPUS} {SMALL} or {GPUS} {LARGE}, whichever comes first"

    def run_three(self) -> str:
        self._run("train", LARGE, 1)
        self._run("serve", SMALL, 2)
        self._run("notebook", SMALL, 1)
        isolated = all(tenant.container.isolated for tenant in self.tenants.values())
        how = "in namespaces" if isolated else "without namespaces (not allowed here)"
        for tenant in self.tenants.values():
            inside = [device.total_mib for device in tenant.container.ask("info").devices]
            must(inside == [tenant.limit_mib], f"{tenant.pod.name} sees {inside} MiB")
        return f"each container sees only its own share of the GPU; real processes {how}"

    def push_limits(self) -> str:
        for tenant in self.tenants.values():
            self._push(tenant)
        return f"{len(self.tenants)} times 1 MiB too much was refused"

    def show_use(self) -> str:
        held = {f"{name}/main": (t.used_mib, t.used_mib) for name, t in self.tenants.items()}
        operator = Operator(self.node)
        self.node.wait(
            "top shows what the containers hold",
            lambda: held.items() <= operator.used_mib().items(),
        )
        self.screen.exhibit("vgpu-agent top --once", operator.top())
        return f"{len(held)} containers by namespace, pod and name"

    def fill_up(self) -> str:
        refused = self.node.run_static("late", asks(LARGE, 1)).admitted
        must(not refused.ok, f"another {LARGE} was given away, but no GPU has room for it")
        return f"a fourth pod is refused: {as_told(refused.message)}"

    def free(self) -> str:
        self._end("notebook")
        self.node.wait("there is room again", lambda: self._free(LARGE) == 1)
        self._push(self._run("late", LARGE, 1))
        self._offered({SMALL: 4, LARGE: 2})  # 2 of either in use, and room for 2 small ones
        return f"a {SMALL} ended: the {LARGE} fits, and has its limit"

    def kill_agent(self) -> str:
        before = self._allocatable()
        self.node.stop_agent(signal.SIGKILL)
        self._start(*self._flags())
        self._offered(before)
        operator = Operator(self.node)
        names = {f"{name}/main" for name in self.tenants}
        self.node.wait("top knows them all", lambda: names == set(operator.used_mib()))
        return f"kill -9: {len(names)} containers untouched, the same {self.shares} free"

    def stop_agent(self) -> str:
        code = self.node.stop_agent()
        must(code == 0, f"the agent ended with exit code {code}")
        return "SIGTERM, exit code 0"

    # --- doing ----------------------------------------------------------------------------------

    def _flags(self) -> "Sequence[str]":
        """Of the agent in the end."""
        return ("--slice-sizes", SIZES)

    def _start(self, *flags: str) -> None:
        self.node.start_agent(*flags)
        self.node.wait("the agent is ready", self.node.ready)

    def _run(self, name: str, resource: str, count: int) -> Tenant:
        """Hand kubelet a pod and start its container with exactly what Allocate returned."""
        pod = self.node.run_static(name, asks(resource, count))
        must(pod.admitted.ok, f"{name}: {pod.admitted.message}")
        grant = pod.admitted.containers["main"]
        uuids = grant.env["NVIDIA_VISIBLE_DEVICES"].split(",")
        must(len(uuids) == 1, f"{name} has slices of {len(uuids)} GPUs")
        container = Container.start(
            name,
            driver=self.node.driver,
            env=grant.env,
            mounts=[SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
        )
        self.node.proc.add(
            container.pid, pod_uid=pod.uid, container="main", mounts=container.mounts
        )
        tenant = Tenant(pod, uuids[0], self._worth_mib(resource, count), container)
        self.tenants[name] = tenant
        return tenant

    def _worth_mib(self, resource: str, count: int) -> int:
        """What a container may use."""
        return MIB_OF[resource] * count

    def _end(self, name: str) -> None:
        tenant = self.tenants.pop(name)
        tenant.container.stop()
        self.node.end_static(tenant.pod)

    def _push(self, tenant: Tenant) -> None:
        name, limit_mib = tenant.pod.name, tenant.limit_mib
        must(tenant.container.ask(f"alloc {limit_mib // 2}").ok, f"{name} may not use its share")
        answer = tenant.container.ask(f"alloc {limit_mib - limit_mib // 2 + 1}")
        must(not answer.ok, f"{name} got 1 MiB more than its {limit_mib} MiB")
        answer = tenant.container.ask("info")
        tenant.used_mib, tenant.refused = answer.held_mib, answer.refused

    # --- looking --------------------------------------------------------------------------------

    def _allocatable(self) -> dict[str, int]:
        found = self.node.kubelet.node_status().allocatable
        return {name: count for name, count in found.items() if name in self._resources() and count}

    def _resources(self) -> "Sequence[str]":
        return tuple(MIB_OF)

    def _offered(self, expected: dict[str, int]) -> None:
        self.node.wait(f"kubelet counts {expected}", lambda: self._allocatable() == expected)

    def _free(self, resource: str) -> int:
        view = self.node.kubelet.resources.get(resource)
        used = {
            one
            for tenant in self.tenants.values()
            for one in tenant.pod.admitted.containers["main"].device_ids.get(resource, ())
        }
        return len(view.healthy - used) if view else 0

    def view(self) -> View:
        """The present state: GPUs as kubelet counts them, containers as they told us."""
        views = self.node.kubelet.resources.values()
        ids = {one for view in views for one in view.healthy}
        used = {
            one
            for tenant in self.tenants.values()
            for some in tenant.pod.admitted.containers["main"].device_ids.values()
            for one in some
        }
        gpus = tuple(
            GpuRow(
                index=number,
                name=MODEL,
                healthy=any(one.startswith(uuid) for one in ids),
                vgpus_in_use=sum(one.startswith(uuid) for one in used),
                vgpus=sum(one.startswith(uuid) for one in ids | used),
                memory_mib=MEMORY_MIB,
                used_mib=sum(t.used_mib for t in self.tenants.values() if t.gpu_uuid == uuid),
            )
            for number, uuid in ((number, made_up_uuid(number)) for number in range(GPUS))
        )
        tenants = tuple(
            TenantRow(
                pod=name,
                container="main",
                gpu_index=next(g for g in range(GPUS) if made_up_uuid(g) == tenant.gpu_uuid),
                limit_mib=tenant.limit_mib,
                used_mib=tenant.used_mib,
                refused=tenant.refused,
            )
            for name, tenant in self.tenants.items()
        )
        return View(gpus, tenants)


def asks(resource: str, count: int) -> ContainerSpec:
    """A container that asks for so many."""
    return ContainerSpec(name="main", resources={resource: count})


def as_told(message: str) -> str:
    """A refusal as its author wrote it: kubelet wraps it in what sounds like a fault."""
    told = message.rpartition(" desc = ")[2].partition("Allocate failed due to ")
    return (told[2] or told[0]).removesuffix(", which is unexpected")
