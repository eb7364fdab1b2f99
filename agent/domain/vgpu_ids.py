"""vGPU ids: what kubelet counts, which GPU one belongs to, and how many fit into a message.

An id is `<GPU uuid>-<n>`, n from 0 to split count - 1, as HAMi's device plugin names them; the
`<GPU uuid>::<n>` of NVIDIA's plugin is understood too, so that what is in kubelet's checkpoint
after a switch can be read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.domain.gpu import GpuInventory, Sharing

MAX_ID_CHARS = 63  # deviceplugin v1beta1, comment on Device.ID; kubelet does not enforce it
MAX_SLOT_DIGITS = 6
MAX_LIST_BYTES = 3_670_016  # 3.5 MiB: kubelet's gRPC client breaks the stream at 4 MiB
MANY_VGPUS = 1000
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


@dataclass(frozen=True, slots=True)
class Vgpu:
    """One vGPU as it is advertised to kubelet."""

    device_id: str
    healthy: bool
    numa_node: int | None = None  # None: no hint


def vgpu_id(gpu_uuid: str, slot: int) -> str:
    """Name a vGPU. Raises ValueError when kubelet's limits on ids cannot be kept."""
    device_id = f"{gpu_uuid}-{slot}"
    if parse_vgpu_id(device_id) != (gpu_uuid, slot):
        raise ValueError(
            f"{device_id!r} cannot be a device id: it must be 1 to {MAX_ID_CHARS} printable ASCII "
            "characters without blanks and without '::'"
        )
    return device_id


def nameable(gpu_uuid: str, split_count: int) -> bool:
    """Whether all vGPUs of this GPU can have an id."""
    last = max(0, split_count - 1)
    return parse_vgpu_id(f"{gpu_uuid}-{last}") == (gpu_uuid, last)


def parse_vgpu_id(device_id: str) -> tuple[str, int] | None:
    """The GPU uuid and the slot of an id; None for anything that `vgpu_id` cannot have made.

    Total. A bare GPU uuid is not an id: its last part has 12 characters, more than a slot may have.
    """
    if not _plain(device_id):
        return None
    uuid, separator, slot = device_id.partition("::")
    if not separator:
        uuid, _, slot = device_id.rpartition("-")
    canonical = slot.isdecimal() and (slot == "0" or not slot.startswith("0"))
    if not uuid or not canonical or len(slot) > MAX_SLOT_DIGITS:
        return None
    return uuid, int(slot)


def _plain(text: str) -> bool:
    """Whether every character is printable ASCII and there are neither too few nor too many."""
    return (
        0 < len(text) <= MAX_ID_CHARS and text.isascii() and text.isprintable() and " " not in text
    )


def bearable(inventory: GpuInventory, sharing: Sharing) -> Sharing:
    """The sharing whose list kubelet can read: ours, or one of the largest split count that works.

    A split count that is too large from the start is refused by `judge_list`; this is for GPUs that
    appear while the agent runs.
    """
    largest = judge_list(inventory, sharing).largest_split_count
    return sharing if sharing.split_count <= largest else replace(sharing, split_count=largest)


def advertised(inventory: GpuInventory, sharing: Sharing) -> tuple[Vgpu, ...]:
    """Every vGPU of the node, GPU by GPU. A GPU's health is that of all its vGPUs.

    GPUs that cannot be named, which `judge_list` refuses, are left out should they come up later.
    """
    split_count = bearable(inventory, sharing).split_count
    return tuple(
        Vgpu(vgpu_id(gpu.uuid, slot), gpu.healthy, gpu.numa_node if sharing.numa_hints else None)
        for gpu in sharing.offered(inventory)
        if nameable(gpu.uuid, split_count)
        for slot in range(min(split_count, sharing.slots(gpu)))
    )


# --- the size of a ListAndWatch message ----------------------------------------------------------


def list_bytes(vgpus: Iterable[Vgpu]) -> int:
    """Exact size of the encoded ListAndWatchResponse (proto3, device plugin v1beta1)."""
    return sum(
        framed(device_bytes(v.device_id, healthy=v.healthy, numa_node=v.numa_node)) for v in vgpus
    )


def device_bytes(device_id: str, *, healthy: bool, numa_node: int | None) -> int:
    """Exact size of one encoded Device, without the tag and length it has in the list."""
    size = framed(len(HEALTHY if healthy else UNHEALTHY))
    if device_id:  # proto3 leaves empty strings and zeros out
        size += framed(len(device_id.encode()))
    if numa_node is not None:
        node = 1 + _varint(numa_node) if numa_node else 0
        size += framed(framed(node))
    return size


def framed(payload_bytes: int) -> int:
    """Size of a length-delimited field with a one-byte tag."""
    return 1 + _varint(payload_bytes) + payload_bytes


def _varint(value: int) -> int:
    """Size of a number on the wire; negative ones are sent as 64 bits."""
    return 10 if value < 0 else max(1, (value.bit_length() + 6) // 7)


@dataclass(frozen=True, slots=True)
class ListVerdict:
    """Whether the vGPUs of a node can be advertised; sentences are empty when there is no cause."""

    vgpus: int
    encoded_bytes: int  # with every GPU unhealthy, the longer word
    largest_split_count: int  # the largest that works for these GPUs
    refusal: str = ""
    warning: str = ""


def judge_list(inventory: GpuInventory, sharing: Sharing) -> ListVerdict:
    """Decide on the split count before anything is advertised."""
    gpus = sharing.offered(inventory)
    hints = {gpu.uuid: gpu.numa_node if sharing.numa_hints else None for gpu in gpus}
    size_bytes = _encoded_bytes(hints, sharing.split_count)
    vgpus = len(gpus) * sharing.split_count
    largest = _largest_split_count(hints) if gpus else sharing.split_count
    refusal = warning = ""
    if unnameable := [gpu.uuid for gpu in gpus if not nameable(gpu.uuid, sharing.split_count)]:
        refusal = (
            f"the GPU uuid {unnameable[0]!r} makes ids that kubelet's limit of {MAX_ID_CHARS} "
            "printable ASCII characters does not allow: exclude this GPU"
        )
    elif size_bytes > MAX_LIST_BYTES:
        refusal = (
            f"a split count of {sharing.split_count} makes {vgpus} vGPUs of {len(gpus)} GPUs, and "
            f"a list of {size_bytes} bytes; kubelet breaks off at 4 MiB and we stop at "
            f"{MAX_LIST_BYTES}: set the split count to {largest} or less"
        )
    elif vgpus > MANY_VGPUS:
        warning = (
            f"{vgpus} vGPUs on one node make kubelet slow, because it writes the whole list to "
            f"disk at every change: a split count of {max(1, MANY_VGPUS // len(gpus))} avoids it"
        )
    return ListVerdict(vgpus, size_bytes, largest, refusal, warning)


def _encoded_bytes(hints: Mapping[str, int | None], split_count: int) -> int:
    """Size of the list with `split_count` vGPUs per GPU: ids of one length have one size."""
    size_bytes = 0
    for uuid, hint in hints.items():
        first = 0  # slot numbers of one digit, then of two, ...
        for digits in range(1, len(str(split_count)) + 1):
            end = min(split_count, 10**digits)
            longest_id = f"{uuid}-{'0' * digits}"
            size_bytes += (end - first) * framed(
                device_bytes(longest_id, healthy=False, numa_node=hint)
            )
            first = end
    return size_bytes


def _largest_split_count(hints: Mapping[str, int | None]) -> int:
    """The largest split count whose list is short enough, by bisection."""
    fits, too_much = 0, MAX_LIST_BYTES
    while too_much - fits > 1:
        middle = (fits + too_much) // 2
        if _encoded_bytes(hints, middle) <= MAX_LIST_BYTES:
            fits = middle
        else:
            too_much = middle
    return fits
