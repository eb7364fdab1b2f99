"""Who sees and steers what containers do with GPUs, wired.

Configuration stops here, as in `agent.app`: everything below receives plain values.
"""

from collections.abc import Callable, Iterable

from agent.adapters.block_guard import ProcessGuard
from agent.adapters.caches import CONTAINERS
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.kernel_limits import NvmlKernelLimits
from agent.adapters.live_limits import HostLiveLimits
from agent.adapters.nvml_use import NvmlMeter
from agent.adapters.nvml_users import NvmlUsers
from agent.adapters.open_files import allow_many
from agent.adapters.process_places import HostProcessPlaces
from agent.adapters.processes import HostProcesses
from agent.adapters.region_reader import HostRegionReader
from agent.adapters.region_switches import HostRegionSwitches
from agent.adapters.regions import HostRegions
from agent.adapters.totals_file import TotalsFile
from agent.config import Config
from agent.domain.bypass import Allowed
from agent.domain.limit_change import AnnotationRule
from agent.parts import Parts
from agent.services.accounting import Accounting, Books, events_of
from agent.services.detector import Books as DetectorBooks
from agent.services.detector import Detector
from agent.services.enforcement import Enforcement
from agent.services.feedback import Feedback, Levers
from agent.services.granted_containers import GrantedContainers
from agent.services.kernel_limits import KernelLimitsLoop
from agent.services.lending import Lender
from agent.services.limit_annotations import LimitAnnotations
from agent.services.limit_changes import LimitChanges
from agent.services.metering import Metering
from agent.services.roster import Roster
from agent.supervisor import Service

NO_LIMITS = (
    "in mode nvidia containers have GPUs, or replicas of them, without limits, so there are none "
    "to change; the modes slices, hami and volcano give shares of GPUs"
)
FRESH_WITHIN_S = 1.0  # whoever changes a limit is told what is in use now


class Observing:
    """The services that see and steer, and what others ask them."""

    services: list[Service]

    def __init__(self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> None:
        config = parts.config
        allow_many()  # regions and limits files of all containers stay open
        containers = GrantedContainers(
            limits, grants, parts.pods, parts.inventory, config.sharing,
            use=lambda: self.accounting.fresh(within_s=FRESH_WITHIN_S),
        )  # fmt: skip
        self.enforcement = Enforcement(
            grants,
            parts.pods,
            HostProcesses(config.host_proc, CONTAINERS),
            HostRegions(config.host_vgpu_dir, limits.read),
            every_s=config.process_every_s,
            post=parts.events.post,
            seen=parts.seen,
            has_whole_gpus=containers.has_whole_gpus,
            limits_files=limits.files_of,
        )
        self.kernel = KernelLimitsLoop(
            NvmlKernelLimits(config.host_cgroup), grants, parts.pods, limits,
            seen=self.enforcement.seen.now, every_s=config.process_every_s,
        )  # fmt: skip
        metering = Metering(NvmlMeter())
        self.accounting = self._made_accounting(parts, grants, limits, metering)
        self.detector = self._made_detector(parts, grants, limits)
        self.changes = LimitChanges(
            limits,
            containers,
            event=parts.events.post,
            count=parts.metrics.limit_change,
            none_here="" if config.limits_containers else NO_LIMITS,
        )
        annotations = LimitAnnotations(
            self.changes,
            containers,
            limits,
            parts.pods,
            rule=AnnotationRule(config.limits_annotation),
        )
        if not config.limits_containers:  # whose use it is, and no more
            self.services = [self.enforcement, metering, self.accounting]
            return
        self.services = [
            self.enforcement,
            metering,
            self.accounting,
            self.detector,
            annotations,
            *([self.kernel] if config.kernel_limits else []),
            *_feedback(parts, grants, limits),
        ]

    def _made_accounting(
        self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits, metering: Metering
    ) -> Accounting:
        config = parts.config

        return Accounting(
            Books(
                grants=grants,
                pods=parts.pods,
                regions=HostRegionReader(config.host_vgpu_dir),
                limits=limits,
                states=self.enforcement.states,
                seen=self.enforcement.seen,
                kernel=self.kernel.kept.now,
                priorities_of_regions=config.priority_from == "region",
                per_process=config.metrics_per_process,
            ),
            metering,
            TotalsFile(config.state_dir),
            every_s=config.accounting_every_s,
            on_disagree=events_of(parts.events.post, parts.pods),
        )

    def _made_detector(
        self, parts: Parts, grants: FileGrantLog, limits: HostLiveLimits
    ) -> Detector:
        config = parts.config
        return Detector(
            NvmlUsers(),
            HostProcessPlaces(config.host_proc, CONTAINERS),
            DetectorBooks(
                grants=grants,
                pods=parts.pods,
                inventory=parts.inventory,
                sharing=config.sharing,
                limits=limits.largest_bytes,
                changed=limits.changed,
                largest_ever=limits.largest_ever,
                directories=_directories(config),
                states=self.enforcement.states,
            ),
            Allowed(
                frozenset(config.bypass_allow_programs), frozenset(config.bypass_allow_namespaces)
            ),
            every_s=config.bypass_every_s,
            post=parts.events.post,
            count=parts.metrics.bypass,
            evict=parts.cluster.evict_pod if config.on_bypass == "evict" else None,
        )


def _directories(config: Config) -> Callable[[], Iterable[tuple[str, str]]]:
    """Whose directories there are: also of containers that another plugin granted before us."""
    places = [config.host_vgpu_dir]
    if config.mode == "volcano":  # where Volcano's plugin has them
        places.append(config.host_vgpu_dir / "vgpu")
    readers = [HostRegionReader(place) for place in places]
    return lambda: [key for reader in readers for key in reader.directories()]


def _feedback(parts: Parts, grants: FileGrantLog, limits: HostLiveLimits) -> list[Service]:
    config = parts.config
    if not (config.priorities or config.core_lending):
        return []
    switches = HostRegionSwitches(config.host_vgpu_dir)
    feedback = Feedback(
        Roster(
            switches,
            limits,
            parts.pods,
            priorities_of_regions=config.priority_from == "region",
            grants=grants.records,
        ),
        Levers(switches=switches, leases=limits, guard=ProcessGuard()),
        priorities=config.priorities,
        lender=Lender(switches, limits) if config.core_lending else None,
        paused=parts.mig_lock.dividing,
    )
    limits.listen(feedback.wake)  # what is lent does not wait for the next round
    return [feedback]
