"""A simulated node whose pods Volcano's scheduler places; see `agent.sim.node`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler_wire import PlacedClaim
from agent.sim.volcano_scheduler import CORES, MEMORY, NUMBER, VolcanoScheduler

FACTOR = "vgpu-agent/gpu-memory-factor"


class VolcanoNode(SimNode):
    """One node in mode `volcano`. `release` is Volcano's; amounts are asked for in MiB."""

    resource = NUMBER

    def __init__(
        self,
        root: Path,
        command: Sequence[str],
        *,
        release: str = "master",
        lock_nodes: bool = False,
        flags: Sequence[str] = (),
        **more: Any,
    ) -> None:
        super().__init__(root, command, flags=("--mode", "volcano", *flags), **more)
        self._volcano_release, self._lock_nodes = release, lock_nodes

    def start(self) -> Self:
        """See `SimNode.start`."""
        super().start()
        self.volcano = VolcanoScheduler(
            self.client, release=self._volcano_release, lock_nodes=self._lock_nodes
        )
        return self

    @property
    def factor(self) -> int:
        """MiB of a unit, as the node's annotation tells people."""
        return int(self.annotations()[FACTOR])

    def limits_of(self, ask: Ask) -> dict[str, int]:
        """In units: as who writes a pod for this node would."""
        if not ask.vgpus:
            return {}
        units = ask.memory_mib // self.factor
        wanted = {NUMBER: ask.vgpus, MEMORY: units, CORES: ask.core_percent}
        return {name: amount for name, amount in wanted.items() if amount}

    def devices_of(self, ask: Ask) -> dict[str, int]:
        """Kubelet counts all three."""
        return self.limits_of(ask)

    def place_pod(
        self, name: str, asks: Sequence[Ask], *, namespace: str = "team"
    ) -> list[list[PlacedClaim]]:
        """Have the scheduler decide on a pod and bind; its decision, in MiB, init ones first."""
        shares = self.volcano.schedule(namespace, name, self.name)
        factor = self.factor
        ordered = [ask for ask in asks if ask.kind != "app"]
        ordered += [ask for ask in asks if ask.kind == "app"]
        return [
            [PlacedClaim(s.uuid, s.memory * factor, s.cores) for s in shares.get(ask.name, [])]
            for ask in ordered
        ]

    def run_pod(self, name: str, asks: Sequence[Ask], *, namespace: str = "team") -> RanPod:
        """See `SimNode.run_pod`. Raises NoFit, NodeLocked of Volcano's scheduler."""
        return super().run_pod(name, asks, namespace=namespace)
