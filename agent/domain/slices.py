"""Slices: parts of GPUs that are handed out by their device ids alone, without a scheduler.

Either every GPU is cut into equal parts, or there are a few named sizes, each a resource of its
own; sizes share what a GPU has, so what still fits changes with every container. A slice's part is
rounded down: what a division leaves over belongs to nobody, and the sum never exceeds the card.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.domain.gpu import Gpu, GpuInventory, Sharing, scaled
from agent.domain.grants import Claim, GrantRecord
from agent.domain.identities import is_identity
from agent.domain.vgpu_ids import Vgpu, nameable, vgpu_id

SIZE_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?", re.ASCII)
VENDOR = "NVIDIA"
WHOLE_PERCENT = 100
MAX_PER_GPU = 1000


@dataclass(frozen=True, slots=True)
class Amount:
    """A part of one GPU."""

    memory_mib: int = 0
    core_percent: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.memory_mib + other.memory_mib, self.core_percent + other.core_percent)

    def less(self, other: "Amount") -> "Amount":
        """What is left, which is never less than nothing."""
        return Amount(
            max(0, self.memory_mib - other.memory_mib),
            max(0, self.core_percent - other.core_percent),
        )

    def holds(self, other: "Amount") -> bool:
        """Whether the other one fits into this one."""
        return other.memory_mib <= self.memory_mib and other.core_percent <= self.core_percent

    def times(self, part: "Amount") -> int:
        """How many such parts fit, in memory and in cores."""
        return min(self.memory_mib // part.memory_mib, self.core_percent // part.core_percent)

    def __str__(self) -> str:
        return f"{self.memory_mib} MiB and {self.core_percent} % of its cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSize:
    """A named size."""

    name: str
    memory_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One resource that kubelet is offered. Without a size: equal parts of every GPU."""

    resource: str
    size: SliceSize | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """One device id, and what it stands for."""

    device_id: str
    gpu: Gpu
    amount: Amount


def offers(resource: str, sizes: Iterable[SliceSize]) -> tuple[Offer, ...]:
    """What is offered: `<resource>-<size>` for each size, or the resource alone."""
    named = tuple(Offer(resource=f"{resource}-{size.name}", size=size) for size in sizes)
    return named or (Offer(resource=resource),)


def objection_to(sizes: Iterable[SliceSize], sharing: Sharing) -> str:
    """Why the node cannot be cut so, with what to do; empty: it can."""
    cores = scaled(WHOLE_PERCENT, sharing.core_scaling)
    for size in sizes:
        if size.core_percent > cores:
            return (
                f"the size {size.name} has {size.core_percent} % of a GPU's cores, but there are "
                f"{cores} % to hand out (device-cores-scaling); make it smaller"
            )
    if not sizes and sharing.split_count > cores:
        return (
            f"mode slices cuts a GPU's cores into equal parts, and {sharing.split_count} parts of "
            f"{cores} % would have less than 1 % each; set --device-split-count to {cores} or less"
        )
    return ""


def whole(gpu: Gpu, sharing: Sharing) -> Amount:
    """What a GPU has for all slices together; memory and cores above 1 : 1 only if scaled so."""
    return Amount(
        scaled(gpu.memory_mib or 0, sharing.memory_scaling),
        scaled(WHOLE_PERCENT, sharing.core_scaling),
    )


def part_of(offer: Offer, gpu: Gpu, sharing: Sharing) -> tuple[Amount, int]:
    """What one slice of this GPU is, and how many there are when nothing else is handed out."""
    has = whole(gpu, sharing)
    if offer.size is not None:
        part = Amount(offer.size.memory_mib, offer.size.core_percent)
        return part, min(has.times(part), MAX_PER_GPU)
    count = sharing.split_count
    # What the driver keeps can be no container's. Only the parts are made smaller by it, not what
    # they have to fit into: it may be told otherwise by the next driver, beside parts in use.
    usable = scaled(gpu.usable_mib, sharing.memory_scaling)
    # More than all cores is no limit, and no limit is not what a part may have.
    part = Amount(usable // count, min(WHOLE_PERCENT, has.core_percent // count))
    return part, count if part.memory_mib and part.core_percent else 0


def slices_of(offer: Offer, inventory: GpuInventory, sharing: Sharing) -> tuple[Slice, ...]:
    """Every slice of the node that this resource counts, GPU by GPU."""
    found = []
    for gpu in sharing.offered(inventory):
        part, count = part_of(offer, gpu, sharing)
        prefix = f"{gpu.uuid}-{offer.size.name}" if offer.size else gpu.uuid
        if count and nameable(prefix, count):
            found += [Slice(vgpu_id(prefix, slot), gpu, part) for slot in range(count)]
    return tuple(found)


def unfit(offer: Offer, inventory: GpuInventory, sharing: Sharing) -> str:
    """Why a size has not one slice on this node, with what to do; empty: it has, or no GPU is."""
    gpus, size = sharing.offered(inventory), offer.size
    if size is None or not gpus or any(part_of(offer, gpu, sharing)[1] for gpu in gpus):
        return ""
    largest = max((whole(gpu, sharing) for gpu in gpus), key=lambda has: has.memory_mib)
    return (
        f"a slice of {size.memory_mib} MiB and {size.core_percent} % of a GPU's cores fits none of "
        f"this node, of which the largest has {largest.memory_mib} MiB, so pods that ask for "
        f"{offer.resource} do not come here; make the size {size.name} smaller if they should"
    )


def is_own_form(device_id: str, inventory: GpuInventory) -> bool:
    """Whether it is the id of a slice, of this or another size, of a GPU that is there."""
    for gpu in inventory.gpus:
        if device_id.startswith(f"{gpu.uuid}-"):
            size, _, slot = device_id.removeprefix(f"{gpu.uuid}-").rpartition("-")
            return (not size or SIZE_NAME.fullmatch(size) is not None) and slot.isdecimal()
    return False


# --- what is handed out --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What of each GPU is handed out, and as which ids. An id counts once, whoever lists it."""

    slices: Mapping[str, tuple[str, Amount]] = field(default_factory=dict)  # id -> GPU, part
    others: Mapping[str, Amount] = field(
        default_factory=dict
    )  # GPU -> what no id of ours stands for

    def of(self, uuid: str, *, but: Collection[str] = ()) -> Amount:
        """What of a GPU is handed out, without these ids."""
        used = self.others.get(uuid, Amount())
        for device_id, (gpu, part) in self.slices.items():
            if gpu == uuid and device_id not in but:
                used += part
        return used

    def with_slices(self, more: Mapping[str, tuple[str, Amount]]) -> "Held":
        """The same, and these ids."""
        return Held(slices={**more, **self.slices}, others=self.others)

    def beside(self, others: Mapping[str, Amount]) -> "Held":
        """The same, and what somebody else has given away of each GPU."""
        sums = dict(self.others)
        for uuid, amount in others.items():
            sums[uuid] = sums.get(uuid, Amount()) + amount
        return Held(slices=self.slices, others=sums)


def held_by(
    records: Iterable[GrantRecord],
    raised: Callable[[GrantRecord], Mapping[str, Amount]] = lambda _: {},
) -> Held:
    """What these grants hold. `raised`: by GPU, limits that were changed since and may be larger.

    Two containers of one pod may hold the same id one after the other, an init container and
    another one: what counts is the larger part. A grant that is not of slices counts by its claims.
    """
    slices: dict[str, tuple[str, Amount]] = {}
    others: dict[str, Amount] = {}
    for record in records:
        now = raised(record)
        for claim in record.claims:
            amount = Amount(claim.memory_mib, claim.core_percent)
            amount = _larger(amount, now.get(claim.uuid.lower(), amount))
            ids = [i for i in record.device_ids if i.startswith(f"{claim.uuid}-")]
            if not ids or not is_identity(record.pod_uid):
                others[claim.uuid] = others.get(claim.uuid, Amount()) + amount
                continue
            part, first = _shared(amount, len(ids))
            for device_id, its in zip(ids, [first, *[part] * (len(ids) - 1)], strict=True):
                known = slices.get(device_id)
                slices[device_id] = (claim.uuid, _larger(known[1], its) if known else its)
    return Held(slices=slices, others=others)


def _shared(amount: Amount, count: int) -> tuple[Amount, Amount]:
    """An amount in so many parts; the first one has what is left over."""
    part = Amount(amount.memory_mib // count, amount.core_percent // count)
    rest = amount.less(Amount(part.memory_mib * count, part.core_percent * count))
    return part, part + rest


def _larger(one: Amount, other: Amount) -> Amount:
    return Amount(max(one.memory_mib, other.memory_mib), max(one.core_percent, other.core_percent))


def worth(
    offered: Iterable[Offer], inventory: GpuInventory, sharing: Sharing
) -> dict[str, tuple[str, Amount]]:
    """What every id is: a part of which GPU."""
    return {
        one.device_id: (one.gpu.uuid, one.amount)
        for offer in offered
        for one in slices_of(offer, inventory, sharing)
    }


def free(gpu: Gpu, sharing: Sharing, held: Held, *, but: Collection[str] = ()) -> Amount:
    """What of a GPU can still be handed out."""
    return whole(gpu, sharing).less(held.of(gpu.uuid, but=but))


def advertised(
    offer: Offer, inventory: GpuInventory, sharing: Sharing, held: Held
) -> tuple[Vgpu, ...]:
    """The list for kubelet. A slice that does not fit any more is unhealthy, one in use is not.

    Of those that are free the first ones are healthy, as many as fit beside one another.
    """
    found: list[Vgpu] = []
    fitting: dict[str, int] = {}
    for one in slices_of(offer, inventory, sharing):
        left = fitting.get(one.gpu.uuid)
        if left is None:
            left = free(one.gpu, sharing, held).times(one.amount)
        in_use = one.device_id in held.slices
        fitting[one.gpu.uuid] = left - (not in_use)
        found.append(
            Vgpu(
                one.device_id,
                one.gpu.healthy and (in_use or left > 0),
                one.gpu.numa_node if sharing.numa_hints else None,
            )
        )
    return tuple(found)


def claims_of(slices: Iterable[Slice]) -> tuple[Claim, ...]:
    """What a container gets for these: one claim for each GPU, which adds up its slices."""
    sums: dict[str, tuple[Gpu, Amount]] = {}
    for one in slices:
        before = sums.get(one.gpu.uuid, (one.gpu, Amount()))
        sums[one.gpu.uuid] = (one.gpu, before[1] + one.amount)
    return tuple(
        Claim(gpu.uuid, VENDOR, amount.memory_mib, min(WHOLE_PERCENT, amount.core_percent))
        for gpu, amount in sorted(sums.values(), key=lambda found: found[0].index)
    )
