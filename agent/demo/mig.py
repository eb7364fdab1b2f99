"""The story of operating mode mig: GPUs that the hardware divides, as HAMi's scheduler decides."""

import json
import signal
from collections.abc import Callable, Sequence
from typing import Any

from agent.demo.operator import MIB, Operator
from agent.demo.screen import GpuRow, TenantRow, View
from agent.demo.story import Story, must
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask
from agent.sim.scheduler_mig import MIG_ALLOCATIONS

MODEL, MEMORY_MIB, GPUS, MOST = "NVIDIA A100-SXM4-40GB", 40960, 2, 7
PODS: dict[str, list[Ask]] = {
    "train": [Ask(memory_mib=18000)],
    "notebook": [Ask(memory_mib=4000)],
    "serve": [Ask(name="model", memory_mib=9000), Ask(name="cache", memory_mib=4000)],
}


class MigStory(Story):
    """See `Story`; nothing but the hardware keeps the containers apart."""

    __slots__ = ()

    def steps(self) -> Sequence[tuple[str, Callable[[], str]]]:
        """See `Story.steps`."""
        return (
            ("node registered", self.register),
            ("pods placed", self.place_pods),
            ("instances where they were decided", self.compare_placements),
            ("every container has its instance", self.compare_shares),
            ("memory limit enforced", self.push_limits),
            ("use shown", self.show_use),
            ("live limit refused", self.change_limit),
            ("killed agent has its instances back", self.kill_agent),
            ("kubelet restart survived", self.restart_kubelet),
            ("nothing left behind", self.end_pods),
            ("clean stop", self.stop_agent),
        )

    def register(self) -> str:
        for number in range(GPUS):
            gpu = SimGpu(
                uuid=made_up_uuid(number), name=MODEL, memory_mib=MEMORY_MIB,
                compute_capability="8.0",
            )  # fmt: skip
            self.node.driver.add_gpu(number, gpu)
        self.node.start_agent()
        self.await_instances()
        self.node.wait("the agent is ready", self.node.ready)
        seen = len(self.health_at_scheduler())
        must(seen == GPUS, f"the scheduler reads {seen} GPUs instead of {GPUS}")
        profiles = self.node.scheduler.nodes[self.node.name][0].mig_profiles
        return f"MIG enabled on {seen} GPUs, {len(profiles)} profiles at the scheduler"

    def await_instances(self) -> None:
        """Until kubelet counts as many as there can be."""
        self.node.wait(
            "kubelet counts the instances", lambda: self.node.allocatable() == GPUS * MOST
        )

    def decided(self) -> list[dict[str, Any]]:
        """All instances that the pods' annotations name."""
        pods = {tenant.pod.name: tenant.pod for tenant in self.tenants}.values()
        return [
            one
            for pod in pods
            for one in json.loads(
                self.node.pod_annotations(pod.namespace, pod.name)[MIG_ALLOCATIONS]
            )
        ]

    def compare_placements(self) -> str:
        instances = self.instances()
        for one in self.decided():
            place = one["gpuUUID"], one["placement"]["start"], one["placement"]["size"]
            must(place in instances, f"there is no instance at {place}, but {instances}")
        must(len(instances) == len(self.tenants), f"{len(instances)} instances exist")
        return f"{len(instances)} of {len(self.tenants)}, and the pods' annotations name them"

    def instances(self) -> list[tuple[str, int, int]]:
        """GPU instances as the simulated driver has them: GPU, start, size."""
        path = self.node.driver.config_path.with_name(f"{self.node.driver.config_path.name}.mig")
        lines = [line.split() for line in path.read_text().splitlines()]
        return [(line[1], int(line[4]), int(line[5])) for line in lines if line[0] == "gi"]

    def compare_shares(self) -> str:
        for tenant in self.tenants:
            answer = tenant.container.ask("info")
            inside = [device.total_mib for device in answer.devices]
            must(inside == [tenant.limit_mib], f"{tenant.name} sees {inside} MiB")
            visible = tenant.pod.admitted.containers[tenant.name].env["NVIDIA_VISIBLE_DEVICES"]
            must(visible.startswith("MIG-"), f"{tenant.name} was given {visible}")
        return "each sees a device of just that size; no library, no limits file"

    def show_use(self) -> str:
        """Who has how much of which GPU; what of it is used is the driver's matter."""
        given = {(t.pod.name, t.name): [(t.gpu_uuid, t.limit_mib * MIB)] for t in self.tenants}
        operator = Operator(self.node)

        def told() -> bool:
            use = operator.use()
            divided = {gpu["uuid"] for gpu in use["gpus"] if gpu["mig_enabled"]}
            shown = {
                (one["pod"], one["container"]): [
                    (gpu["uuid"], gpu["memory_limit_bytes"]) for gpu in one["devices"]
                ]
                for one in use["containers"]
            }
            return shown == given and divided >= {t.gpu_uuid for t in self.tenants}

        self.node.wait("top shows who has which part", told)
        must(operator.bypasses() == [], "somebody is accused who keeps to his instance")
        self.screen.exhibit("vgpu-agent top --once", operator.top())
        return f"{len(given)} containers with the size of their instances; nobody is accused"

    def change_limit(self) -> str:
        """Its size is the hardware's, which no agent changes while somebody is on it."""
        tenant = next(t for t in self.tenants if t.name == "cache")
        said = Operator(self.node).refused_limit(
            f"{tenant.pod.name}/{tenant.name}", "--memory", f"{tenant.limit_mib // 2}Mi"
        )
        must("the hardware keeps apart" in said, f"`limit` says: {said}")
        self.look(tenant)
        must(tenant.used_mib == tenant.limit_mib, f"{tenant.name} lost memory by a refusal")
        return said

    def kill_agent(self) -> str:
        before = self.instances()
        self.node.stop_agent(signal.SIGKILL)
        self.node.start_agent()
        self.node.wait("the agent is ready again", self.node.ready)
        self.await_instances()
        must(self.instances() == before, f"{self.instances()} instances instead of {before}")
        self.run("after-kill", [Ask(memory_mib=4000)])
        return "kill -9: containers untouched, nothing double, a new pod served"

    def restart_kubelet(self) -> str:
        self.node.kubelet.restart()
        self.await_instances()
        for tenant in self.tenants:
            before = tenant.used_mib
            self.look(tenant)
            must(tenant.used_mib == before, f"{tenant.name} lost memory in the restart")
        return "containers untouched"

    def end_pods(self) -> str:
        count = len(self.tenants)
        for tenant in self.tenants:
            tenant.container.stop()
        for pod in {tenant.pod.uid: tenant.pod for tenant in self.tenants}.values():
            self.node.delete_pod(pod)
        self.tenants.clear()
        self.node.wait("the instances are gone", lambda: self.instances() == [])
        return f"{count} instances destroyed when their pods were gone"

    def place_pods(self) -> str:
        for name, asks in PODS.items():
            self.run(name, asks)
        return f"{len(PODS)} pods, {len(self.tenants)} containers, one instance each"

    def view(self) -> View:
        """See `Story.view`."""
        numbers = {made_up_uuid(number): number for number in range(GPUS)}
        return View(
            tuple(
                GpuRow(
                    index=number, name=MODEL, healthy=True,
                    vgpus_in_use=sum(t.gpu_uuid == uuid for t in self.tenants), vgpus=MOST,
                    memory_mib=MEMORY_MIB,
                    used_mib=sum(t.used_mib for t in self.tenants if t.gpu_uuid == uuid),
                )
                for uuid, number in numbers.items()
            ),
            tuple(
                TenantRow(
                    pod=t.pod.name, container=t.name, gpu_index=numbers[t.gpu_uuid],
                    limit_mib=t.limit_mib, used_mib=t.used_mib, refused=t.refused,
                )
                for t in self.tenants
            ),
        )  # fmt: skip


def mig_flags(node_files: str) -> list[str]:
    """What makes the agent divide GPUs, and nothing of this machine's."""
    return ["--operating-mode", "mig", "--mig-apply-lock", f"{node_files}/mig-apply.lock"]
