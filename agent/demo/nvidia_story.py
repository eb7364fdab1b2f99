"""The story of mode `nvidia`: kubelet alone, whole GPUs, then replicas by NVIDIA's own file.

Nothing is limited in this mode; what is observed is who is given which GPU, and what is refused.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.demo.operator import Operator
from agent.demo.slices_story import SlicesStory, Tenant, as_told, asks
from agent.demo.story import GPUS, MEMORY_MIB, must
from agent.sim.node import RESOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHARED = f"{RESOURCE}.shared"
REPLICAS = 4
NVIDIAS_FILE = f"""\
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources: [{{name: {RESOURCE}, replicas: {REPLICAS}}}]
"""
XID_OFF_THE_BUS = 79
HELD_MIB = 4096


@dataclass(slots=True)
class NvidiaStory(SlicesStory):
    """The same node and the same telling."""

    shares: str = "replicas"

    def steps(self) -> "Sequence[tuple[str, Callable[[], str]]]":
        return (
            ("node registered", self.register),
            ("whole GPUs given", self.give_whole),
            ("replicas by NVIDIA's file", self.replicate),
            ("spread over the GPUs", self.spread),
            ("too many replicas refused", self.refuse),
            ("owners known from kubelet", self.show_use),
            ("live limit refused", self.change_limit),
            ("an ill GPU takes its replicas with it", self.fall_ill),
            ("killed agent knows them again", self.kill_agent),
            ("clean stop", self.stop_agent),
        )

    def register(self) -> str:
        self.add_gpus()
        self._start()
        self._offered({RESOURCE: GPUS})
        return f"{GPUS} {RESOURCE} at kubelet; there is no API server and no scheduler"

    def give_whole(self) -> str:
        tenants = [self._run(name, RESOURCE, 1) for name in ("one", "two")]
        must(len({tenant.gpu_uuid for tenant in tenants}) == GPUS, "both have the same GPU")
        late = self.node.run_static("late", asks(RESOURCE, 1)).admitted
        must(not late.ok, "a third GPU was given away")
        operator = Operator(self.node)
        names = {f"{name}/main" for name in self.tenants}
        self.node.wait("kubelet tells whose they are", lambda: names <= set(operator.used_mib()))
        for name in ("one", "two"):
            self._end(name)
        return f"a GPU each, all of its {MEMORY_MIB} MiB"

    def replicate(self) -> str:
        self.node.stop_agent()
        (self.node.root / "config.yaml").write_text(NVIDIAS_FILE)
        self._start(*self._flags())
        self._offered({SHARED: GPUS * REPLICAS})
        return f"{GPUS * REPLICAS} {SHARED}; the file is read as it is"

    def spread(self) -> str:
        tenants = [self._run(name, SHARED, 1) for name in ("train", "serve", "notebook")]
        counts = sorted(
            [t.gpu_uuid for t in tenants].count(u) for u in {t.gpu_uuid for t in tenants}
        )
        must(counts == [1, 2], f"replicas are on GPUs as {counts}")
        for tenant in tenants:
            self._hold(tenant)
        return f"{len(tenants)} containers on {GPUS} GPUs, the emptier one first"

    def refuse(self) -> str:
        refused = self.node.run_static("greedy", asks(SHARED, 2)).admitted
        must(not refused.ok, "a container has two replicas")
        return as_told(refused.message)

    def show_use(self) -> str:
        names = {f"{name}/main" for name in self.tenants}
        operator = Operator(self.node)

        def told() -> bool:  # by the driver: nothing in the containers counts
            used = operator.used_mib()
            return names <= set(used) and all(used[name][1] >= HELD_MIB for name in names)

        self.node.wait("top shows what the containers hold", told)
        self.screen.exhibit("vgpu-agent top --once", operator.top())
        return f"{len(names)} containers by namespace, pod and name"

    def change_limit(self) -> str:
        said = Operator(self.node).refused_limit("train", "--memory", "8Gi")
        must("without limits" in said, f"`limit` says: {said}")
        return said

    def fall_ill(self) -> str:
        self.node.driver.lost(1)  # or it would recover while we look
        self.node.driver.xid(1, XID_OFF_THE_BUS)
        self.node.wait("half are ill", lambda: self._allocatable() == {SHARED: REPLICAS})
        self.node.driver.lost(1, lost=False)
        self._offered({SHARED: GPUS * REPLICAS})
        return f"all {REPLICAS} of GPU 1, and all back after clean probes"

    # --- doing ----------------------------------------------------------------------------------

    def _flags(self) -> "Sequence[str]":
        return ("--config-file", str(self.node.root / "config.yaml"))

    def _hold(self, tenant: Tenant) -> None:
        must(tenant.container.ask(f"alloc {HELD_MIB}").ok, f"{tenant.pod.name} may not use its GPU")
        tenant.used_mib = tenant.container.ask("info").held_mib

    def _worth_mib(self, resource: str, count: int) -> int:
        del resource, count
        return MEMORY_MIB  # nothing limits it

    def _resources(self) -> "Sequence[str]":
        return (RESOURCE, SHARED)
