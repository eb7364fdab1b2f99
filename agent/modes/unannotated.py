"""What mode `hami` needs beside it where pods without an annotation get slices (`unannotated`)."""

from agent.adapters.device_plugin import Allocator
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.grant_wire import decode_grant
from agent.adapters.live_limits import HostLiveLimits
from agent.domain.identities import is_identity
from agent.domain.slices import offers, worth
from agent.modes.host_side import HostSide
from agent.modes.slices import kubelet_pods, running_of
from agent.parts import Parts
from agent.services.grant_writer import GrantWriter
from agent.services.kubelet_pods import KubeletPods
from agent.services.lost_grants import LostGrants
from agent.services.published import Pods, PodTable, Published
from agent.services.slice_allocator import SliceAllocator
from agent.services.slice_books import SliceBooks
from agent.services.unannotated import OrSlice, merge, promised


def for_unannotated(
    parts: Parts,
    grants: FileGrantLog,
    limits: HostLiveLimits,
    host: HostSide,
    decided: Allocator,
) -> tuple[Allocator, KubeletPods]:
    """Who answers in the place of `decided`, and who learns whose the slices are."""
    config, cluster = parts.config, parts.view.pods
    books = SliceBooks(
        grants,
        limits,
        counts=lambda record: is_identity(record.pod_uid),  # the others are promised
        promised=lambda: promised(cluster.now(), grants.records()),
    )
    own: Pods = Published(PodTable())
    running = running_of(parts)
    offered = offers(config.resource_name, ())
    lost = LostGrants(
        limits.read,
        decode=decode_grant,
        gpus=parts.inventory.now,
        worth=lambda: worth(offered, parts.inventory.now(), config.sharing),
    )
    watch = kubelet_pods(
        parts,
        grants,
        pods=own,
        running=running,
        released=books.release,
        adopt=lost.adopt,
        only_own=True,
    )
    books.changed.listen(watch.wake)
    if parts.all_pods is not None:
        merge(parts.all_pods, cluster, own)
    slices = SliceAllocator(
        parts.inventory,
        config.sharing,
        books,
        GrantWriter(host.caches, grants, host.policy, changed=limits),
        running=running,
        on_outcome=parts.metrics.allocation,
    )
    return OrSlice(decided, slices, offered[0]), watch
