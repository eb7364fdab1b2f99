"""Codec of the pod annotation in which the scheduler says which GPU goes to which container.

    pod        := container ";" container ";" ...   each ends with ";", the last one too
    container  := "" | device ":" device ":" ...    each ends with ":", the last one too
    device     := UUID "," TYPE "," MEM "," CORES   MiB and percent, 32-bit integers

Read as HAMi 2.10 reads it (pkg/device/devices.go): pieces without a comma are no devices, fields
after the fourth are ignored, and a number that is not one is an error rather than "no limit".
Containers without a vGPU are empty and keep their place. The author of a pod can write here.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from agent.domain.grants import Claim
from agent.domain.shown import shown
from agent.errors import MalformedAnnotation

TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
MAX_CHARS = 262_144  # the API server's limit on all annotations of an object together
MAX_SLOTS = 2_048
MAX_CLAIMS = 1_024  # of all containers: to read more, of many pods, would take all of an Allocate
INT32 = range(-(2**31), 2**31)
FIELDS = 4

_NUMBER = re.compile(r"[+-]?0*[0-9]{1,10}", re.ASCII)

Slot = tuple[Claim, ...]
Slots = tuple[Slot, ...]


def _malformed(why: str) -> MalformedAnnotation:
    return MalformedAnnotation(
        f"the annotation {TO_ALLOCATE} cannot be read: {why}; the scheduler writes it, so check "
        "that nothing else edits it and that the scheduler is HAMi 2.3 to 2.10, then delete the "
        "pod so that it is scheduled again"
    )


def _number(text: str, what: str, entry: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise _malformed(f"in the entry {shown(entry)} the {what} {shown(text)} is no whole number")
    number = int(text)
    if number not in INT32:
        raise _malformed(f"in the entry {shown(entry)} the {what} does not fit into 32 bits")
    return number


def _claim(entry: str) -> Claim:
    fields = entry.split(",", FIELDS)
    if len(fields) < FIELDS:
        raise _malformed(
            f"the entry {shown(entry)} has {len(fields)} of the {FIELDS} fields "
            "uuid,type,MiB,percent"
        )
    uuid, vendor, memory, cores = fields[:FIELDS]
    return Claim(uuid, vendor, _number(memory, "memory", entry), _number(cores, "core", entry))


def entries(
    pieces: Iterable[str], malformed: Callable[[str], MalformedAnnotation]
) -> Iterator[list[str]]:
    """The vGPUs of each container as they are written. Raises what `malformed` gives."""
    left = MAX_CLAIMS
    for piece in pieces:
        found = [entry for entry in piece.split(":") if "," in entry]
        left -= len(found)
        if left < 0:
            raise malformed(f"it lists more than {MAX_CLAIMS} vGPUs")
        for entry in found:
            if "?" in entry:  # which is there for what is not ASCII, too (decode_pod)
                raise malformed(f"the entry {shown(entry)} has a character that no entry has")
        yield found


def decode_claims(text: str) -> Slots:
    """Read the annotation: for each container, in the scheduler's order, its claims.

    What follows the last ";" is a container only if it is not empty, so that decoding and
    encoding keep the number of terminators.

    Raises MalformedAnnotation, naming the entry, and nothing else, whatever the text is.
    """
    if len(text) > MAX_CHARS:
        raise _malformed(f"it has more than {MAX_CHARS} characters")
    if text.count(";") > MAX_SLOTS:
        raise _malformed(f"it lists more than {MAX_SLOTS} containers")
    pieces = text.split(";")
    if not pieces[-1]:
        pieces.pop()
    return tuple(tuple(map(_claim, found)) for found in entries(pieces, _malformed))


def encode_claims(slots: Iterable[Iterable[Claim]]) -> str:
    """Write the annotation, every container and every device terminated."""
    return "".join(
        "".join(f"{c.uuid},{c.vendor},{c.memory_mib},{c.core_percent}:" for c in slot) + ";"
        for slot in slots
    )


def is_padding(claim: Claim) -> bool:
    """Whether this is the all-empty tuple that old schedulers write for "no GPU here"."""
    return not claim.uuid and not claim.memory_mib and not claim.core_percent


def pending(slots: Slots) -> dict[int, Slot]:
    """The slots that still hold vGPUs, by their place, without padding."""
    real = {
        place: tuple(claim for claim in slot if not is_padding(claim))
        for place, slot in enumerate(slots)
    }
    return {place: claims for place, claims in real.items() if claims}


def erased(slots: Slots, place: int) -> Slots:
    """The slots after one of them was served: it is empty now, the others keep their place."""
    return (*slots[:place], (), *slots[place + 1 :])


def holds_devices(text: str) -> bool:
    """Whether an annotation of this form, of any vendor, still names a device. Total."""
    return any(
        "," in entry and not entry.startswith(",")
        for piece in text[:MAX_CHARS].split(";")
        for entry in piece.split(":")
    )
