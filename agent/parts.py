"""What the services of one agent share while they are put together."""

from dataclasses import dataclass

from agent.adapters.cluster import KubeCluster
from agent.adapters.metrics import Metrics
from agent.config import Config
from agent.domain.topology import GpuPair
from agent.services.events import Events
from agent.services.node_view import NodeView
from agent.services.published import Inventory, Published


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Made once, by `agent.app`."""

    config: Config
    metrics: Metrics
    cluster: KubeCluster
    view: NodeView
    events: Events
    inventory: Inventory
    topology: Published[tuple[GpuPair, ...]] | None  # None: nobody asks how GPUs are connected
