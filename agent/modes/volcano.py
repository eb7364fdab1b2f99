"""Mode `volcano`: Volcano's deviceshare plugin decides, and says so in annotations of pods.

Kubelet is offered three resources. Of `vgpu-number` it takes vGPUs, as in mode `hami`; of
`vgpu-memory` and `vgpu-cores` it takes amounts, for which nothing has to be done: how much a
container gets of which GPU is in the annotation.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

import dataclasses
from collections.abc import Callable, Sequence

from agent.adapters.device_plugin import Answers
from agent.adapters.factor_file import FactorFile
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.kubelet import KubeletLink
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.podresources import PodResourcesClient
from agent.adapters.socket_watch import SocketWatch
from agent.domain import volcano
from agent.domain.dialect import Dialect
from agent.domain.gpu import GpuInventory
from agent.domain.grants import Grant
from agent.domain.vgpu_ids import ListVerdict, Vgpu, advertised
from agent.domain.volcano_units import core_units, list_bytes, memory_units, objection
from agent.modes.host_side import HostSide
from agent.parts import Parts
from agent.services.allocator import Allocator
from agent.services.bind_finisher import BindFinisher
from agent.services.grant_writer import GrantWriter
from agent.services.memory_factor import MemoryFactor
from agent.services.plugin import Plugin
from agent.services.preference import Preference
from agent.services.reconcile import Reconcile
from agent.services.registrar import Registrar
from agent.services.room import Room
from agent.services.supply import Supply
from agent.services.turns import Turns
from agent.supervisor import Service


class Amounts:
    """Implements `agent.adapters.device_plugin.Allocator` for what is only counted."""

    def allocate(self, _device_ids: Sequence[str], *, deadline_s: float) -> Grant:  # noqa: ARG002
        """Nothing is done for an amount: the container's vGPUs have it in their limits."""
        return Grant()


class VolcanoMode:
    """Implements `Mode`."""

    services: Sequence[Service]
    plugins: Sequence[Plugin]

    def __init__(self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> None:
        # Volcano's scheduler knows no memory scaling; that one is ignored the settings have noted.
        config = dataclasses.replace(
            parts.config, sharing=dataclasses.replace(parts.config.sharing, memory_scaling=1.0)
        )
        self._parts = parts = dataclasses.replace(parts, config=config)
        view = parts.view
        self._factor = MemoryFactor(
            parts.inventory,
            config.sharing,
            configured=config.memory_factor,
            form=config.memory_ids,
            store=FactorFile(config.state_dir),
            changed=lambda verdict: parts.metrics.memory_unit(
                verdict.factor << 20, verdict.smallest << 20
            ),
        )
        dialect = volcano.dialect(self._factor.now)
        host = HostSide(config, grants, view.pods, parts.inventory)
        self.caches, self._host = host.caches, host
        finisher = BindFinisher(view, grants.records, post=parts.events.post, dialect=dialect)
        turns = Turns(view, grants, failed=finisher.failed, dialect=dialect)
        allocator = Allocator(
            view,
            turns,
            finisher,
            GrantWriter(
                host.caches,
                grants,
                host.policy,
                changed=limits,
                # What others granted is in units of memory that may have been others then.
                room=Room(grants, view, config.sharing, limits=limits, dialect=None),
                post=parts.events.post,
            ),
            Supply(
                inventory=parts.inventory,
                sharing=config.sharing,
                node_name=config.node_name,
                memory_unit_mib=self._factor.now,
                dialect=dialect,
            ),
            on_outcome=parts.metrics.allocation,
            dialect=dialect,
        )
        self.plugins = (
            self._number(allocator, Preference(turns)),
            self._amount(
                volcano.MEMORY,
                lambda gpus: memory_units(
                    gpus, config.sharing, self._factor.now(), config.memory_ids
                ),
            ),
            self._amount(volcano.CORES, lambda gpus: core_units(gpus, config.sharing)),
        )
        self._view = view
        self._registrar = _registrar(parts, dialect, self._factor)
        self.services = [
            *self.plugins,
            self._registrar,
            finisher,
            Reconcile(
                config.resource_name,
                grants,
                PodResourcesClient(config.pod_resources_socket),
                view.pods,
                self.plugins[0].status,
                count=parts.metrics.grant_mismatch,
                post=parts.events.post,
            ),
            *host.services,
        ]

    def missing(self) -> Sequence[str]:
        found = (self._registrar.missing(), self._view.missing(), self._host.missing())
        return [why for why in found if why]

    def leave(self, within_s: float) -> None:
        self._registrar.leave(within_s=within_s)

    def _number(self, allocator: Allocator, preference: Preference) -> Plugin:
        config, metrics = self._parts.config, self._parts.metrics
        answers = Answers(
            self._parts.inventory,
            lambda picture: advertised(picture, config.sharing),
            allocator,
            preference,
            budget_s=config.allocate_budget_s,
            on_overdue=lambda took_s: metrics.allocation("budget_exceeded", took_s),
        )
        return self._plugin(config.resource_name, answers, None)

    def _amount(self, resource: str, units: Callable[[GpuInventory], Sequence[Vgpu]]) -> Plugin:
        answers = Answers(
            self._parts.inventory,
            units,
            Amounts(),
            None,  # which units kubelet takes is the same to everybody
            budget_s=self._parts.config.allocate_budget_s,
        )
        return self._plugin(resource, answers, self._judge if resource == volcano.MEMORY else None)

    def _plugin(
        self,
        resource: str,
        answers: Answers,
        judge: Callable[[GpuInventory], ListVerdict] | None,
    ) -> Plugin:
        config = self._parts.config
        return Plugin(
            resource,
            KubeletLink(config.kubelet_socket, resource, answers),
            SocketWatch(config.kubelet_socket),
            self._parts.inventory,
            config.sharing,
            judge=judge,
            prepared=self._host.tried,
            count=self._parts.metrics.registration,
        )

    def _judge(self, inventory: GpuInventory) -> ListVerdict:
        """What speaks against the units, should GPUs come up later."""
        config, factor = self._parts.config, self._factor.now()
        units = memory_units(inventory, config.sharing, factor, config.memory_ids)
        return ListVerdict(
            len(units),
            list_bytes(units),
            config.sharing.split_count,
            refusal=objection(inventory, config.sharing, factor, config.memory_ids),
        )


def _registrar(parts: Parts, dialect: Dialect, factor: MemoryFactor) -> Registrar:
    config = parts.config
    return Registrar(
        parts.cluster,
        parts.inventory,
        parts.view.own_node,
        config.sharing,
        handshake=config.answers_handshake,
        register=volcano.VolcanoRegister(sharing=config.sharing, factor=factor.now),
        dialect=dialect,
        count=parts.metrics.register_write,
    )
