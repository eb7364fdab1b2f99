"""The limits file: what a container may use of each GPU, as the hook library reads it.

One cache line per device, little endian, written by the agent only and mounted read-only, so that
neither a container's environment nor its files can raise a limit. docs/limits-file.md describes the
layout; hook/limits_layout.h is its other side.
"""

import struct
import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from agent.domain.grants import Claim

MAGIC, VERSION = 0x6D696C76, 1  # "vlim"
FILE_BYTES = 4096
MAX_DEVICES = 16
MIB, MAX_BYTES, MAX_U32 = 1 << 20, (1 << 64) - 1, (1 << 32) - 1

_HEADER = struct.Struct("<4I3Q24x")
_LINE = struct.Struct("<II16sQIIQQII")
_CACHE_PATH = struct.Struct("<256s")
_MIG, _OVERSUBSCRIBE = 1, 2


class CorePolicy(IntEnum):
    """When core limits hold: as the monitor says, always, or never."""

    DEFAULT, FORCE, DISABLE = range(3)


class MalformedLimits(ValueError):
    """Bytes that are no limits file; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimit:
    """One line. Times are CLOCK_MONOTONIC."""

    uuid: str  # "GPU-..." or "MIG-..."
    memory_limit_bytes: int = 0  # 0: no limit
    core_permille: int = 0  # share of the GPU's time; 0 or >= 1000: no limit
    oversubscribe: bool = False
    lent_permille: int = 0  # on top, until lent_until_ns
    lent_until_ns: int = 0
    blocked_until_ns: int = 0
    # What Allocate has put into the container's environment for this device: the hook then goes by
    # this file alone, so that a limit can be raised. 0: nothing.
    told_memory_mib: int = 0
    told_core_permille: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsFile:
    """The whole file."""

    devices: tuple[DeviceLimit, ...]
    core_policy: CorePolicy = CorePolicy.DEFAULT
    cache_path: str = ""  # the usage region, as the container sees it; empty: the environment says
    alive_at_ns: int = 0
    # The file there, when the agent has made it: the hook then takes no other and makes none.
    region_inode: int = 0  # 0: it has not
    region_id: int = 0


def limits_of(
    claims: Sequence[Claim],
    *,
    cache_path: str,
    oversubscribe: bool = False,
    core_policy: CorePolicy = CorePolicy.DEFAULT,
) -> LimitsFile | None:
    """What a container with these claims may use; claims on one GPU add up, no limit wins.

    None when the file cannot say it (more than 16 GPUs, ids that are no uuids, a long path): then
    the container's environment alone does.
    """
    memory_mib: dict[str, int] = {}
    core_percent: dict[str, int] = {}
    for claim in claims:
        known = claim.uuid in memory_mib
        memory_mib[claim.uuid] = _sum(memory_mib[claim.uuid] if known else None, claim.memory_mib)
        core_percent[claim.uuid] = _sum(
            core_percent[claim.uuid] if known else None, claim.core_percent
        )
    unfit = any(_packed(uuid) is None for uuid in memory_mib)
    if unfit or len(memory_mib) > MAX_DEVICES or len(cache_path.encode()) >= _CACHE_PATH.size:
        return None
    return LimitsFile(
        devices=tuple(
            DeviceLimit(
                uuid=uuid,
                memory_limit_bytes=min(memory_mib[uuid] * MIB, MAX_BYTES),
                core_permille=min(core_percent[uuid], 100) * 10,
                oversubscribe=oversubscribe,
                told_memory_mib=min(claims[place].memory_mib, MAX_U32),
                told_core_permille=min(claims[0].core_percent, 100) * 10,
            )
            for place, uuid in enumerate(memory_mib)
        ),
        core_policy=core_policy,
        cache_path=cache_path,
    )


def _sum(so_far: int | None, more: int) -> int:
    """Two limits of one GPU; 0 stands for none."""
    return more if so_far is None else 0 if 0 in (so_far, more) else so_far + more


def _packed(uuid: str) -> tuple[int, bytes] | None:
    """Flags and the 16 bytes of a device's uuid; None for ids of another form."""
    kind, _, digits = uuid.partition("-")
    try:
        value = uuids.UUID(digits)
    except ValueError:
        return None
    if str(value) != digits.lower() or kind not in ("GPU", "MIG"):
        return None
    return (_MIG if kind == "MIG" else 0), value.bytes


def encode(limits: LimitsFile) -> bytes:
    """The file's bytes. Raises MalformedLimits for what the layout cannot say."""
    path = limits.cache_path.encode()
    if not 1 <= len(limits.devices) <= MAX_DEVICES:
        raise MalformedLimits(f"{len(limits.devices)} devices, but a file has 1 to {MAX_DEVICES}")
    if len(path) >= _CACHE_PATH.size or b"\0" in path:
        raise MalformedLimits(f"the path {limits.cache_path!a} is longer than 255 bytes")
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        len(limits.devices),
        limits.core_policy,
        limits.alive_at_ns,
        limits.region_inode,
        limits.region_id,
    )
    lines = b"".join(_encode_line(device) for device in limits.devices)
    lines = lines.ljust(MAX_DEVICES * _LINE.size, b"\0")
    return (header + lines + _CACHE_PATH.pack(path)).ljust(FILE_BYTES, b"\0")


def _encode_line(device: DeviceLimit) -> bytes:
    packed = _packed(device.uuid)
    if packed is None:
        raise MalformedLimits(f"{device.uuid!a} is not the uuid of a GPU or MIG device")
    mig, digits = packed
    try:
        return _LINE.pack(
            0,
            mig | (_OVERSUBSCRIBE if device.oversubscribe else 0),
            digits,
            device.memory_limit_bytes,
            device.core_permille,
            device.lent_permille,
            device.lent_until_ns,
            device.blocked_until_ns,
            device.told_memory_mib,
            device.told_core_permille,
        )
    except struct.error as error:
        raise MalformedLimits(f"a number of {device.uuid} does not fit: {error}") from error


def decode(content: bytes) -> LimitsFile:
    """Read a file back. Raises MalformedLimits, and nothing else, for any other bytes."""
    if len(content) < FILE_BYTES:
        raise MalformedLimits(f"{len(content)} bytes, but a file has {FILE_BYTES}")
    magic, version, count, policy, alive_at_ns, inode, region_id = _HEADER.unpack_from(content)
    if (magic, version) != (MAGIC, VERSION):
        raise MalformedLimits(f"magic {magic:#x} version {version} is not this layout")
    if not 1 <= count <= MAX_DEVICES or policy not in tuple(CorePolicy):
        raise MalformedLimits(f"{count} devices, core policy {policy}: out of range")
    offset = _HEADER.size
    lines = content[offset : offset + count * _LINE.size]
    path = content[offset + MAX_DEVICES * _LINE.size :][: _CACHE_PATH.size].partition(b"\0")[0]
    try:
        cache_path = path.decode()
    except UnicodeDecodeError as error:
        raise MalformedLimits(f"the path {path!a} is not UTF-8") from error
    return LimitsFile(
        devices=tuple(_decode_line(fields) for fields in _LINE.iter_unpack(lines)),
        core_policy=CorePolicy(policy),
        cache_path=cache_path,
        alive_at_ns=alive_at_ns,
        region_inode=inode,
        region_id=region_id,
    )


def _decode_line(
    fields: tuple[int, int, bytes, int, int, int, int, int, int, int],
) -> DeviceLimit:
    sequence, flags, digits, memory, core, lent, lent_until_ns, blocked_until_ns, *told = fields
    if sequence % 2:
        raise MalformedLimits("a line is half written")
    return DeviceLimit(
        uuid=f"{'MIG' if flags & _MIG else 'GPU'}-{uuids.UUID(bytes=digits)}",
        memory_limit_bytes=memory,
        core_permille=core,
        oversubscribe=bool(flags & _OVERSUBSCRIBE),
        lent_permille=lent,
        lent_until_ns=lent_until_ns,
        blocked_until_ns=blocked_until_ns,
        told_memory_mib=told[0],
        told_core_permille=told[1],
    )
