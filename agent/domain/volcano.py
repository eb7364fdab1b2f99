"""Volcano's dialect: what its deviceshare plugin writes and expects of a node's device plugin.

    pod        := container ";" container ";" ...   joined, not terminated
    container  := "" | device ":" device ":" ...    each ends with ":", the last one too
    device     := UUID "," "NVIDIA" "," UNITS "," CORES

Only app containers with a limit of `vgpu-number` or `vgpu-memory` are listed. UNITS are of as many
MiB as the memory factor says. Volcano's own plugin panics at a device of less than four fields and
takes what is no number for 0, which is no limit; both are refused here. It takes the n-th slot for
the n-th container of the pod, which serves the wrong one when another comes first.

Sources: Volcano 1.9 to 1.15 and later, pkg/scheduler/api/devices/nvidia/vgpu (utils.go,
device_info.go); volcano-vgpu-device-plugin 1.9 to 1.12 and later, pkg/plugin, pkg/util.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from agent.domain.claims import MAX_CHARS, MAX_SLOTS, Slot, Slots, entries
from agent.domain.dialect import Codec, Dialect
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import Claim
from agent.domain.pods import Container, Pod
from agent.domain.shown import shown
from agent.domain.vgpu_ids import bearable
from agent.errors import MalformedAnnotation

NUMBER, MEMORY, CORES = (f"volcano.sh/vgpu-{what}" for what in ("number", "memory", "cores"))
TO_ALLOCATE = "volcano.sh/devices-to-allocate"
DECIDED = "volcano.sh/vgpu-ids-new"
VGPU_NODE = "volcano.sh/vgpu-node"
VGPU_TIME = "volcano.sh/vgpu-time"
BIND_PHASE = "volcano.sh/bind-phase"
BIND_TIME = "volcano.sh/bind-time"
REGISTER = "volcano.sh/node-vgpu-register"
HANDSHAKE = "volcano.sh/node-vgpu-handshake"
FACTOR = "vgpu-agent/gpu-memory-factor"
LOCK = "hamivgpu"  # the lock's name is its key; schedulers with deviceshare.NodeLockEnable set it
SERVED_TIME = str(2**64 - 1)  # Volcano's plugin takes the earliest pod: this one no more
VENDOR = "NVIDIA"  # compared as a whole
LEFT = "GPU"  # as long as the decision contains it, somebody still has to be served

# Its scheduler asks again with the next change of the Node, and our answer is one. Questions may
# wait 60 s; Volcano's plugin writes every 30 s.
HANDSHAKE_SPACING_S = 25.0

FIELDS = 4
MOST = 2**31 - 1
WHOLE_PERCENT = 100
_DIGITS = 10
_SEPARATORS = str.maketrans({",": " ", ":": " "})


# --- pods -----------------------------------------------------------------------------------------


def _malformed(why: str) -> MalformedAnnotation:
    return MalformedAnnotation(
        f"the annotation {TO_ALLOCATE} cannot be read: {why}; Volcano's scheduler writes it, so "
        "check that nothing else edits it, then delete the pod so that it is scheduled again"
    )


def _number(text: str, what: str, entry: str, most: int) -> int:
    digits = text.lstrip("0") or text[-1:]
    if not (text.isascii() and text.isdigit() and len(digits) <= _DIGITS) or int(digits) > most:
        raise _malformed(
            f"in the entry {shown(entry)} the {what} {shown(text)} is no number from 0 to {most}"
        )
    return int(digits)


def _claim(entry: str, factor: int) -> Claim:
    fields = entry.split(",", FIELDS)
    if len(fields) < FIELDS:
        raise _malformed(
            f"the entry {shown(entry)} has {len(fields)} of the {FIELDS} fields "
            "uuid,type,memory,percent"
        )
    uuid, vendor, memory, cores = fields[:FIELDS]
    # Of a GPU's cores Volcano's scheduler gives no more than all, whatever the scaling.
    return Claim(
        uuid,
        vendor,
        _number(memory, "memory", entry, MOST) * factor,
        _number(cores, "core", entry, WHOLE_PERCENT if vendor == VENDOR else MOST),
    )


def decode(text: str, factor: int) -> Slots:
    """Read the decision; slots that hold nothing keep their place. No text: no slots.

    Raises MalformedAnnotation, naming the entry, and nothing else, whatever the text is.
    """
    if len(text) > MAX_CHARS:
        raise _malformed(f"it has more than {MAX_CHARS} characters")
    if text.count(";") >= MAX_SLOTS:
        raise _malformed(f"it lists more than {MAX_SLOTS} containers")
    if not text:
        return ()
    return tuple(
        tuple(_claim(entry, factor) for entry in found)
        for found in entries(text.split(";"), _malformed)
    )


def encode(slots: Iterable[Iterable[Claim]], factor: int) -> str:
    """Write the decision: every device terminated, containers joined."""
    return ";".join(
        "".join(f"{c.uuid},{c.vendor},{c.memory_mib // factor},{c.core_percent}:" for c in slot)
        for slot in slots
    )


def pending(slots: Slots) -> Mapping[int, Slot]:
    """The slots that hold GPUs of ours, by their place; other types are not ours to give."""
    ours = {
        place: tuple(claim for claim in slot if claim.vendor == VENDOR)
        for place, slot in enumerate(slots)
    }
    return {place: claims for place, claims in ours.items() if claims}


def erased(slots: Slots, place: int) -> Slots:
    """The slots after one of them was served: what is not ours stays in it."""
    left = tuple(claim for claim in slots[place] if claim.vendor != VENDOR)
    return (*slots[:place], left, *slots[place + 1 :])


def listed(pod: Pod) -> tuple[Container, ...]:
    """The containers of which the scheduler decides, one slot each; never init containers."""
    return tuple(c for c in pod.containers if c.kind == "app" and c.listed)


def others_pending(pod: Pod) -> bool:
    """Whether the decision still names a GPU: then Volcano's plugin does not end the bind."""
    return LEFT in pod.annotations.get(TO_ALLOCATE, "")


def dialect(factor: Callable[[], int]) -> Dialect:
    """What pods and locks look like while a unit of memory is `factor()` MiB."""
    return Dialect(
        scheduler="Volcano's scheduler (volcano, with deviceshare.VGPUEnable)",
        to_allocate=TO_ALLOCATE,
        decided=DECIDED,
        node=VGPU_NODE,
        bind_phase=BIND_PHASE,
        bind_time=BIND_TIME,
        order=VGPU_TIME,
        lock=LOCK,
        register=REGISTER,
        handshake=HANDSHAKE,
        handshake_begins=True,
        handshake_spacing_s=HANDSHAKE_SPACING_S,
        further=(FACTOR,),
        codec=Codec(
            decode=lambda text: decode(text, factor()),
            encode=lambda slots: encode(slots, factor()),
            pending=pending,
            erased=erased,
        ),
        ended={VGPU_TIME: SERVED_TIME},
        lists=listed,
        others_pending=others_pending,
    )


# --- the node -------------------------------------------------------------------------------------


def in_order(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """GPUs by minor number: their place in the annotation is their id in the scheduler."""
    return tuple(sorted(gpus, key=lambda g: (g.index if g.minor is None else g.minor, g.uuid)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VolcanoRegister:
    """Implements `NodeRegister`: `UUID,count,units,NVIDIA-<name>,health,mode:` for each GPU."""

    sharing: Sharing
    factor: Callable[[], int]
    key: str = REGISTER
    form: str = "volcano"

    def text(self, inventory: GpuInventory) -> str:
        """What the annotation shall say. Memory is not scaled, as in Volcano's plugin."""
        sharing = replace(bearable(inventory, self.sharing), memory_scaling=1.0)
        return "".join(
            f"{gpu.uuid.translate(_SEPARATORS)},{sharing.split_count},"
            f"{(gpu.memory_mib or 0) // self.factor()},"
            f"NVIDIA-{gpu.name.translate(_SEPARATORS)},"
            f"{'true' if gpu.healthy else 'false'},{sharing.mode}:"
            for gpu in in_order(sharing.offered(inventory))
        )

    def same(self, found: str, inventory: GpuInventory) -> bool:
        """Whether the scheduler reads this already; the order counts."""
        return found == self.text(inventory)

    def further(self, inventory: GpuInventory) -> Mapping[str, str]:
        """Annotations for people: the factor."""
        return {FACTOR: str(self.factor())} if self.sharing.offered(inventory) else {}
