"""The same story where Volcano's scheduler decides: other resources, annotations and units."""

from agent.demo.story import GPUS, Story, must
from agent.sim.volcano_node import VolcanoNode
from agent.sim.volcano_scheduler import BIND_PHASE, CORES, LOCK, MEMORY, TO_ALLOCATE


class VolcanoStory(Story):
    """See `Story`; its node is a `VolcanoNode`."""

    __slots__ = ()

    @property
    def keys(self) -> tuple[str, str, str]:
        """See `Story.keys`."""
        return LOCK, BIND_PHASE, TO_ALLOCATE

    def wait_for_scheduler(self) -> None:
        """See `Story.wait_for_scheduler`: kubelet's status must have all three resources."""
        self.node.wait("kubelet counts memory and cores", self.all_counted)
        self.node.wait("the scheduler reads the GPUs", self.health_at_scheduler)

    def all_counted(self) -> bool:
        """Whether the node's status has all three resources."""
        told = self.node.kubelet.told
        return told is not None and all(told.allocatable.get(one) for one in (MEMORY, CORES))

    def health_at_scheduler(self) -> list[bool]:
        """See `Story.health_at_scheduler`."""
        return [gpu.healthy for gpu in self._node.volcano.look(self.node.name)]

    def register(self) -> str:
        """Three resources, and how much a unit of memory is."""
        said = Story.register(self)
        allocatable = self.node.kubelet.node_status().allocatable
        must(allocatable.get(CORES) == GPUS * 100, f"kubelet has {allocatable} instead of cores")
        return f"{said}; {allocatable[MEMORY]} units of {self._node.factor} MiB"

    @property
    def _node(self) -> VolcanoNode:
        assert isinstance(self.node, VolcanoNode)  # noqa: S101 - made so by `agent.demo`
        return self.node
