"""The lines of a limits file as bytes: what changes in place, and what a crash leaves of it.

A line is changed between two steps of its sequence, so one whose sequence is odd was left half
written. Its limits are then what the agent's record of changes says, or, without one, what stands
there: whoever only lends or blocks does not touch them. docs/limits-file.md describes the layout.
"""

import struct
from collections.abc import Mapping
from dataclasses import replace

from agent.domain.lending import capped_permille
from agent.domain.limit_record import SetLimit
from agent.domain.limits_file import FILE_BYTES, MAX_DEVICES, DeviceLimit, LimitsFile

LINES_AT, LINE_BYTES = 64, 64
ALIVE_AT = 16
# In a line, in bytes from its beginning.
SEQUENCE_AT, MEMORY_AT, CORE_AT, LENT_AT, LENT_UNTIL_AT, BLOCKED_UNTIL_AT = 0, 24, 32, 36, 40, 48
# Nothing is lent or blocked for longer at a time: what is has been left by a boot before this one.
LONGEST_LEASE_NS = 5_000_000_000

_SEQUENCE = struct.Struct("<I")
_CHANGING_BYTES = 32  # from MEMORY_AT on


def line_at(place: int) -> int:
    """Where the line of a device begins."""
    return LINES_AT + LINE_BYTES * place


def sequences(content: bytes) -> tuple[int, ...]:
    """The sequences of all lines, used or not. The content is a whole file."""
    return tuple(_SEQUENCE.unpack_from(content, line_at(i))[0] for i in range(MAX_DEVICES))


def whole(content: bytes) -> bytes:
    """The file without what nobody finished: lines left half written lend and block nothing."""
    if len(content) < FILE_BYTES:
        return content
    mended = bytearray(content)
    for place, sequence in enumerate(sequences(content)):
        if sequence % 2:
            at = line_at(place)
            _SEQUENCE.pack_into(mended, at, (sequence + 1) & 0xFFFFFFFF)
            mended[at + LENT_AT : at + MEMORY_AT + _CHANGING_BYTES] = bytes(
                MEMORY_AT + _CHANGING_BYTES - LENT_AT
            )
    return bytes(mended)


def fixed_part(content: bytes) -> bytes:
    """The file without what changes while a container runs: whose it is, and where it counts."""
    fixed = bytearray(content[:FILE_BYTES])
    if len(fixed) < FILE_BYTES:
        return bytes(fixed)
    fixed[ALIVE_AT : ALIVE_AT + 8] = bytes(8)
    for place in range(MAX_DEVICES):
        at = line_at(place)
        fixed[at : at + 4] = bytes(4)
        fixed[at + MEMORY_AT : at + MEMORY_AT + _CHANGING_BYTES] = bytes(_CHANGING_BYTES)
    return bytes(fixed)


def with_limits(now: LimitsFile, limits: Mapping[str, SetLimit]) -> LimitsFile:
    """The file with these limits, by uuid; devices that are not among them keep theirs."""
    return replace(now, devices=tuple(_with_limit(device, limits) for device in now.devices))


def _with_limit(device: DeviceLimit, limits: Mapping[str, SetLimit]) -> DeviceLimit:
    found = limits.get(device.uuid)
    if found is None:
        return device
    return replace(
        device,
        memory_limit_bytes=found.memory_limit_bytes,
        core_permille=found.core_permille,
        lent_permille=capped_permille(found.core_permille, device.lent_permille),
    )


def limits_in(limits: LimitsFile) -> dict[str, SetLimit]:
    """What the devices of a file are allowed, by uuid."""
    return {
        device.uuid: SetLimit(
            uuid=device.uuid,
            memory_limit_bytes=device.memory_limit_bytes,
            core_permille=device.core_permille,
        )
        for device in limits.devices
    }


def without_stale_leases(now: LimitsFile, *, now_ns: int) -> LimitsFile:
    """The file without leases that end later than any that is given: the clock began anew."""
    return replace(now, devices=tuple(_unleased(device, now_ns) for device in now.devices))


def _unleased(device: DeviceLimit, now_ns: int) -> DeviceLimit:
    latest_ns = now_ns + LONGEST_LEASE_NS
    if device.lent_until_ns > latest_ns:
        device = replace(device, lent_permille=0, lent_until_ns=0)
    if device.blocked_until_ns > latest_ns:
        device = replace(device, blocked_until_ns=0)
    return device


def changes_only_lines(before: LimitsFile, after: LimitsFile) -> bool:
    """Whether a file can be changed in place from one to the other."""
    return _unchanging(before) == _unchanging(after)


def _unchanging(limits: LimitsFile) -> LimitsFile:
    devices = tuple(
        replace(
            device,
            memory_limit_bytes=0,
            core_permille=0,
            lent_permille=0,
            lent_until_ns=0,
            blocked_until_ns=0,
        )
        for device in limits.devices
    )
    return replace(limits, devices=devices, alive_at_ns=0)
