"""What the journal of grants says, line by line: one JSON object each, of one pod's containers.

    {"granted": {...}}          a container's grant
    {"answered": "container"}   kubelet got it
    {"dropped": "container"}    it was not made after all

A grant that had to be made before its pod was known (identities.py) is written once more, under the
container's name, when kubelet tells whose it is. What follows the last end of a line was cut short
by a crash, and says nothing.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from agent.domain.grants import Claim, DeviceNode, Grant, GrantRecord, Mount

_UNREADABLE = (
    *(ValueError, TypeError, KeyError, RecursionError, AttributeError),
    OverflowError,  # a moment of 400 digits
)


def encode_record(record: GrantRecord) -> str:
    """One line for a grant; whether it was answered is a line of its own."""
    return json.dumps({"granted": {k: v for k, v in asdict(record).items() if k != "answered"}})


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError("a list of strings was expected")
    return tuple(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string was expected")
    return value


def _priority(value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise TypeError("a whole number was expected")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false was expected")
    return value


def _mapping(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise TypeError("an object of strings was expected")
    return value


def _exactly(cls: type, value: Any, **kinds: type) -> Any:
    """A small dataclass whose fields have exactly these types."""
    if not isinstance(value, dict) or {k: type(v) for k, v in value.items()} != kinds:
        raise TypeError(f"a {cls.__name__} was expected")
    return cls(**value)


def _decode_grant(value: Any) -> Grant:
    return Grant(
        envs=_mapping(value["envs"]),
        mounts=tuple(
            _exactly(Mount, item, container_path=str, host_path=str, read_only=bool)
            for item in value["mounts"]
        ),
        device_nodes=tuple(
            _exactly(DeviceNode, item, container_path=str, host_path=str, permissions=str)
            for item in value["device_nodes"]
        ),
        annotations=_mapping(value["annotations"]),
        cdi_devices=_texts(value["cdi_devices"]),
    )


def _decode_record(value: Any) -> GrantRecord:
    granted_at_s = float(value["granted_at_s"])
    if not math.isfinite(granted_at_s):
        raise ValueError("a moment was expected")
    names = _texts([value[key] for key in ("pod_uid", "namespace", "pod_name", "container")])
    return GrantRecord(
        pod_uid=names[0],
        namespace=names[1],
        pod_name=names[2],
        container=names[3],
        device_ids=_texts(value["device_ids"]),
        claims=tuple(
            _exactly(Claim, item, uuid=str, vendor=str, memory_mib=int, core_percent=int)
            for item in value["claims"]
        ),
        grant=_decode_grant(value["grant"]),
        granted_at_s=granted_at_s,
        priority=_priority(value.get("priority")),
        strict=_flag(value.get("strict", False)),
        owner_uid=_text(value.get("owner_uid", "")),
    )


def decode_file(text: str) -> dict[str, GrantRecord]:
    """What a pod's file says: its grants by container, oldest first.

    Raises ValueError, and nothing else, when a complete line of it is not one of ours.
    """
    records: dict[str, GrantRecord] = {}
    *lines, _cut_short = text.split("\n")
    try:
        for line in lines:
            entry = json.loads(line)
            if "granted" in entry:
                record = _decode_record(entry["granted"])
                records.pop(record.container, None)
                records[record.container] = record
            elif "answered" in entry:
                container = entry["answered"]
                records[container] = replace(records[container], answered=True)
            else:
                records.pop(entry["dropped"], None)
    except _UNREADABLE as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return records
