"""What the services of one agent share while they are put together."""

from dataclasses import dataclass, field

from agent.adapters.metrics import Metrics
from agent.adapters.mig_files import HamiApplyLock
from agent.config import Config
from agent.domain.enforcement import Seen
from agent.domain.topology import GpuPair
from agent.ports import Cluster
from agent.services.events import Events
from agent.services.node_view import NodeView
from agent.services.published import Inventory, Pods, Published


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Made once, by `agent.app`."""

    config: Config
    metrics: Metrics
    cluster: Cluster
    view: NodeView
    events: Events
    inventory: Inventory
    topology: Published[tuple[GpuPair, ...]] | None  # None: nobody asks how GPUs are connected
    mig_lock: HamiApplyLock
    all_pods: Pods | None = None  # where kubelet's pods are added to the API server's
    # the processes of containers with grants; written by who looks at them (Enforcement)
    seen: Published[Seen] = field(
        default_factory=lambda: Published(Seen(seeing=False, processes={}))
    )

    @property
    def pods(self) -> Pods:
        """The pods that there are."""
        return self.all_pods or self.view.pods
