"""Is what lies where a container counts its use still the region that the agent made for it?

A container can delete, empty or exchange its region, or take GPUs out of it. Where its limits file
says which file the region is, that is no region that is "not made yet".
"""

import struct
from dataclasses import dataclass

from agent.domain.limits_file import LimitsFile
from agent.domain.new_region import RegionMark, SeenRegion, mark_of
from agent.domain.region import MAX_DEVICES, UUID_BYTES, V1, Rejected

HEAD_BYTES = V1["uuids"] + MAX_DEVICES * UUID_BYTES
UNMARKED = RegionMark()
_MAGIC, _COUNT = struct.Struct("<i"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a container's region. Inode 0 of the mark: nothing, so anything will do."""

    mark: RegionMark = UNMARKED
    gpus: tuple[str, ...] = ()  # that it has to count, by place; empty: not known

    @property
    def places(self) -> int:
        """How many are worth reading: the agent puts those that are granted first."""
        return len(self.gpus) or MAX_DEVICES


ANY = Expected()


def expected_region(limits: LimitsFile | None) -> Expected:
    """What the limits file says. Which GPUs it has is known of a region that the agent made."""
    if limits is None or limits.region_inode == 0:
        return ANY
    gpus = tuple(device.uuid.lower() for device in limits.devices) if limits.region_id else ()
    return Expected(RegionMark(limits.region_inode, limits.region_id), gpus)


def spoiled(expected: Expected, seen: SeenRegion | None) -> tuple[Rejected, str] | None:
    """Why what is there is not the region that it has to be. `seen` has HEAD_BYTES, if there are.

    None: it is, or nothing is known of it.
    """
    if expected.mark.inode == 0:
        return None
    return (Rejected.REMOVED, "it was removed") if seen is None else _changed(expected, seen)


def _changed(expected: Expected, seen: SeenRegion) -> tuple[Rejected, str] | None:
    if seen.inode != expected.mark.inode:
        return Rejected.EXCHANGED, "it is another file than the one that belongs there"
    if len(seen.head) < _MAGIC.size or _MAGIC.unpack_from(seen.head)[0] == 0:
        return Rejected.WIPED, "its beginning was wiped out"
    if mark_of(seen) != expected.mark:
        return Rejected.EXCHANGED, "its content was exchanged for another region's"
    missing = set(expected.gpus) - _gpus(seen.head, expected.places)
    if missing:
        return Rejected.GPU_MISSING, f"it does not count the granted {min(missing)} any more"
    return None


def _gpus(head: bytes, places: int) -> set[str]:
    """Those that it counts, in lower case."""
    if len(head) < HEAD_BYTES:
        return set()
    count = min(_COUNT.unpack_from(head, V1["device_count"])[0], places)
    texts = (head[V1["uuids"] + place * UUID_BYTES :][:UUID_BYTES] for place in range(count))
    return {text.partition(b"\0")[0].decode("ascii", "replace").lower() for text in texts}
