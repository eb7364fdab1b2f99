"""Mode `hami`: a scheduler of HAMi's decides, and says so in annotations of pods.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

from collections.abc import Callable, Sequence

from agent.adapters.device_plugin import Allocator as Answering
from agent.adapters.device_plugin import Answers
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.kubelet import KubeletLink
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.podresources import PodResourcesClient
from agent.adapters.socket_watch import SocketWatch
from agent.config import Config
from agent.domain.gpu import Sharing
from agent.domain.identities import is_identity
from agent.domain.pods import Pod
from agent.domain.register import Scores
from agent.domain.topology import GpuPair, pair_scores
from agent.domain.vgpu_ids import advertised
from agent.modes.host_side import HostSide
from agent.parts import Parts
from agent.services.allocator import Allocator, Further, Writer, nothing_further
from agent.services.bind_finisher import BindFinisher
from agent.services.grant_writer import GrantWriter
from agent.services.plugin import Plugin
from agent.services.preference import Preference
from agent.services.published import Inventory, Pods, Published
from agent.services.reconcile import Reconcile
from agent.services.registrar import Registrar
from agent.services.room import Room
from agent.services.supply import Supply
from agent.services.turns import Turns
from agent.supervisor import Service

MAKING_S = 30.0  # for several instances; how long hardware takes was not measured, kubelet waits


class HamiMode:
    """Implements `Mode`."""

    services: Sequence[Service]
    plugins: Sequence[Plugin]

    def __init__(self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> None:
        config, view = parts.config, parts.view
        host = HostSide(config, grants, parts.pods, parts.inventory)
        self.caches, self._host = host.caches, host
        finisher = BindFinisher(view, grants.records, post=parts.events.post)
        turns = Turns(view, grants, failed=finisher.failed)
        room = Room(
            grants,
            view,
            config.sharing,
            limits=limits,
            beside=lambda: _by_own_names(parts.all_pods),
        )
        writer: Writer = GrantWriter(
            host.caches,
            grants,
            host.policy,
            changed=limits,
            room=room,
            post=parts.events.post,
        )
        further: Further = nothing_further
        divided: list[Service] = []
        self._undividable: Callable[[], str] = lambda: ""
        if config.sharing.mode == "mig":
            from agent.modes.hami_mig import Divided

            made = Divided(parts, grants, host)
            writer, further, divided = made.grants, made.grants.further, [made.keeper]
            self._undividable = made.keeper.missing
        allocator = Allocator(
            view,
            turns,
            finisher,
            writer,
            Supply(
                inventory=parts.inventory,
                sharing=config.sharing,
                node_name=config.node_name,
                memory_unit_mib=lambda: max(1, config.gpumem_factor),
            ),
            further=further,
            on_outcome=parts.metrics.allocation,
        )
        others: list[Service] = []
        again: Published[int] | None = None
        answering: Answering = allocator
        if parts.all_pods is not None:
            from agent.modes.unannotated import for_unannotated

            answering, watch = for_unannotated(parts, grants, limits, host, allocator)
            others, again = [watch], watch.again
        plugin = _plugin(parts, answering, Preference(turns), host.tried, again)
        self.plugins = (plugin,)
        self._view = view
        self._registrar = _registrar(parts)
        self.services = [
            plugin,
            self._registrar,
            finisher,
            Reconcile(
                config.resource_name,
                grants,
                PodResourcesClient(config.pod_resources_socket),
                parts.pods,
                plugin.status,
                count=parts.metrics.grant_mismatch,
                post=parts.events.post,
            ),
            *divided,
            *others,
            *host.services,
        ]

    def missing(self) -> Sequence[str]:
        found = (
            self._registrar.missing(),
            self._view.missing(),
            self._host.missing(),
            self._undividable(),
        )
        return [why for why in found if why]

    def leave(self, within_s: float) -> None:
        self._registrar.leave(within_s=within_s)


def _by_own_names(pods: Pods | None) -> dict[str, Pod]:
    """Pods with slices, by the names of their grants."""
    table = pods.now().pods if pods else {}
    return {name: pod for name, pod in table.items() if is_identity(name)}


def _budget_s(config: Config) -> float:
    """How long an Allocate may take: the driver needs its time for making instances."""
    least_s = MAKING_S if config.sharing.mode == "mig" else 0.0
    return max(config.allocate_budget_s, least_s)


def _plugin(
    parts: Parts,
    allocator: Answering,
    preference: Preference,
    prepared: Callable[[float], bool],
    again: Published[int] | None,
) -> Plugin:
    config, metrics = parts.config, parts.metrics
    answers = Answers(
        parts.inventory,
        lambda picture: advertised(picture, config.sharing),
        allocator,
        preference,
        again=again,
        budget_s=_budget_s(config),
        on_overdue=lambda took_s: metrics.allocation("budget_exceeded", took_s),
    )
    return Plugin(
        config.resource_name,
        KubeletLink(config.kubelet_socket, config.resource_name, answers),
        SocketWatch(config.kubelet_socket),
        parts.inventory,
        config.sharing,
        prepared=prepared,
        count=metrics.registration,
    )


def _registrar(parts: Parts) -> Registrar:
    config, topology = parts.config, parts.topology
    return Registrar(
        parts.cluster,
        parts.inventory,
        parts.view.own_node,
        config.sharing,
        form=config.register_format,
        handshake=config.answers_handshake,
        scores=_scores(parts.inventory, topology, config.sharing) if topology else None,
        count=parts.metrics.register_write,
    )


def _scores(
    inventory: Inventory, topology: Published[tuple[GpuPair, ...]], sharing: Sharing
) -> Callable[[], Scores]:
    """What the registrar asks for the pair scores as they are now."""

    def now() -> Scores:
        uuids = [gpu.uuid for gpu in sharing.offered(inventory.now())]
        return pair_scores(uuids, topology.now())

    return now
