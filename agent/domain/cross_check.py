"""Does a container count what the driver sees of it?

The two never agree to the byte, and are not read at the same moment. What counts as too much:

- every process has some memory that is seen late or never: code that is loaded when it first runs,
  the driver's own tables, rounding to pages of 2 MiB;
- a context costs 250 to 600 MiB according to GPU and driver. A process that counts has had it
  measured, or has not yet; then it may have that much more. One that does not count at all may not;
- of what is counted the driver may hold a little more, because it gives memory in larger pieces.

A difference in the other direction is none: memory on the host and memory that was promised count.
"""

from dataclasses import dataclass

from agent.domain.region import RegionProcess

MIB = 1 << 20
PER_PROCESS_BYTES = 64 * MIB
CONTEXT_BYTES = 640 * MIB
PER_COUNTED = 20  # one part in so many
SURE_AFTER = 2  # looks in a row, to say so and to take it back


@dataclass(frozen=True, slots=True)
class Agreement:
    """What is known of one GPU of a container."""

    disagrees: bool = False
    counted_bytes: int = 0  # by the container, when it was looked at last
    contrary: int = 0  # looks in a row that said the opposite of `disagrees`
    look: int = 0  # of the driver; each counts once


def tolerance_bytes(
    slots: tuple[RegionProcess, ...], place: int, counted_bytes: int, listed: int
) -> int:
    """How much more the driver may hold than these slots count. `listed`: processes it lists."""
    measured = sum(place < len(slot.used) and slot.used[place].context_bytes > 0 for slot in slots)
    unmeasured = max(0, min(len(slots), listed) - measured)
    return listed * PER_PROCESS_BYTES + unmeasured * CONTEXT_BYTES + counted_bytes // PER_COUNTED


def compared(
    before: Agreement, *, driver_bytes: int, counted_bytes: int, tolerance_bytes: int, look: int
) -> Agreement:
    """After another look of the driver; the same one again changes nothing.

    The container's figures of before and after it are known, so the larger one counts: memory that
    was freed in between is no difference.
    """
    if look == before.look:
        return before
    most = max(counted_bytes, before.counted_bytes)
    beyond = driver_bytes > most + tolerance_bytes
    contrary = before.contrary + 1 if beyond != before.disagrees else 0
    turned = contrary >= SURE_AFTER
    return Agreement(
        disagrees=beyond if turned else before.disagrees,
        counted_bytes=counted_bytes,
        contrary=0 if turned else contrary,
        look=look,
    )
