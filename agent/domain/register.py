"""Codec of the node annotations in which the scheduler finds this node's GPUs.

`hami.io/node-nvidia-register` exists in three forms, and each HAMi scheduler reads only its own:
csv7 (2.4 and earlier), csv9 (2.5 to 2.7) and json (2.8 and later). Nothing on the wire tells which
is wanted. Sources: HAMi 2.4.1 to 2.10.0, pkg/device/devices.go and the plugin's register.go.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from agent.domain.gpu import WHOLE_PERCENT, Gpu, GpuInventory, MigPlacement, Sharing, scaled
from agent.domain.mig import core_percent
from agent.domain.shown import shown
from agent.domain.vgpu_ids import bearable
from agent.errors import MalformedAnnotation

REGISTER = "hami.io/node-nvidia-register"
SCORE = "hami.io/node-nvidia-score"
MAX_CHARS = 262_144  # the API server's limit on all annotations of an object together
INT32_MAX = 2**31 - 1

_GO_TRUE = ("1", "t", "T", "TRUE", "true", "True")
_GO_FALSE = ("0", "f", "F", "FALSE", "false", "False")
_SHORT, _FULL = 7, 9  # fields of a CSV record without and with index and mode
_NUMBER = re.compile(r"[+-]?0*[0-9]{1,10}", re.ASCII)
# Go's encoder escapes these; the reader does not care, but our bytes shall equal the plugin's.
_GO_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
_SEPARATORS = str.maketrans({",": " ", ":": " "})

Scores = Iterable[tuple[str, Mapping[str, int]]]  # as `agent.domain.topology.pair_scores` gives


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredGpu:
    """One GPU as it is offered to the scheduler."""

    uuid: str
    index: int = 0
    count: int = 0  # vGPUs
    memory_mib: int = 0  # after scaling
    core_percent: int = 0  # after scaling; 100: one GPU
    type: str = ""  # "NVIDIA-" and the product name; users filter by parts of it
    numa: int = 0
    mode: str = "hami-core"  # "hami-core" | "mig" | "mps" | ""
    mig_profiles: tuple["RegisteredProfile", ...] = ()  # json only, mode mig
    healthy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredProfile:
    """A size of GPU instance as it is offered to schedulers from HAMi 2.10 on."""

    name: str
    memory_mib: int
    core_percent: int  # of the largest profile's multiprocessors
    slice_count: int
    placements: tuple[MigPlacement, ...]


class NodeRegister(Protocol):
    """What one kind of scheduler is told of a node's GPUs."""

    @property
    def key(self) -> str:
        """The annotation of the Node."""

    @property
    def form(self) -> str:
        """How it is written, for the log."""

    def text(self, inventory: GpuInventory) -> str:
        """What it shall say."""

    def same(self, found: str, inventory: GpuInventory) -> bool:
        """Whether what is written tells the scheduler the same."""

    def further(self, inventory: GpuInventory) -> Mapping[str, str]:
        """Annotations that go with it, in their exact words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiRegister:
    """Implements `NodeRegister` for the HAMi schedulers of one form: `json`, `csv9` or `csv7`."""

    sharing: Sharing
    form: str
    key: str = REGISTER

    def text(self, inventory: GpuInventory) -> str:
        """See `NodeRegister.text`."""
        return encode_register(self._offers(inventory), self.form)

    def same(self, found: str, inventory: GpuInventory) -> bool:
        """See `NodeRegister.same`."""
        return says_the_same(found, self._offers(inventory), self.form)

    def further(self, _inventory: GpuInventory) -> Mapping[str, str]:
        """See `NodeRegister.further`."""
        return {}

    def _offers(self, inventory: GpuInventory) -> tuple["RegisteredGpu", ...]:
        sharing = bearable(inventory, self.sharing)  # what kubelet is told, too
        return registered_gpus(sharing.offered(inventory), sharing, self.form)


# --- what is offered -------------------------------------------------------------------------


def registered_gpus(gpus: Iterable[Gpu], sharing: Sharing, form: str) -> tuple[RegisteredGpu, ...]:
    """Give the offers for these GPUs, by index. GPUs without known memory must be filtered out."""
    ordered = sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))
    return tuple(_offer(gpu, sharing, form) for gpu in ordered)


def _offer(gpu: Gpu, sharing: Sharing, form: str) -> RegisteredGpu:
    memory_scaling, core_scaling = sharing.memory_scaling, sharing.core_scaling
    if sharing.mode == "mig":
        memory_scaling = core_scaling = 1.0
    return RegisteredGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        count=sharing.slots(gpu),
        memory_mib=min(INT32_MAX, scaled(gpu.memory_mib or 0, memory_scaling)),
        core_percent=min(INT32_MAX, scaled(WHOLE_PERCENT, core_scaling)),
        type=type_name(gpu.name, form),
        numa=max(0, gpu.numa_node or 0),
        mode=sharing.mode,
        mig_profiles=_profiles(gpu, sharing) if form == "json" else (),
        healthy=gpu.healthy,
    )


def _profiles(gpu: Gpu, sharing: Sharing) -> tuple[RegisteredProfile, ...]:
    if sharing.mode != "mig":
        return ()
    allowed = sharing.mig_profiles(gpu)
    return tuple(
        RegisteredProfile(
            name=profile.name,
            memory_mib=profile.memory_mib,
            core_percent=core_percent(profile, gpu.mig_profiles),
            slice_count=profile.slice_count,
            placements=profile.placements,
        )
        for profile in allowed
    )


def type_name(product: str, form: str) -> str:
    """Give the `type` that stands for a product name.

    HAMi 2.7 and earlier put `NVIDIA-` before every name, 2.8 and later only before those that do
    not start with `NVIDIA`.
    """
    if form == "json" and product.startswith("NVIDIA"):
        return product
    return f"NVIDIA-{product}"


# --- writing ---------------------------------------------------------------------------------


def encode_register(gpus: Iterable[RegisteredGpu], form: str) -> str:
    """Encode the annotation in `csv7`, `csv9` or `json`. Total; the order is kept.

    CSV has no escapes: a separator within a text becomes a blank. No GPUs: `` or `[]`.
    """
    if form == "json":
        return _go_json([_json_object(gpu) for gpu in gpus])
    return "".join(_csv_record(gpu, full=form == "csv9") for gpu in gpus)


def _csv_record(gpu: RegisteredGpu, *, full: bool) -> str:
    uuid, type_, mode = (text.translate(_SEPARATORS) for text in (gpu.uuid, gpu.type, gpu.mode))
    health = "true" if gpu.healthy else "false"
    record = f"{uuid},{gpu.count},{gpu.memory_mib},{gpu.core_percent},{type_},{gpu.numa},{health}"
    return f"{record},{gpu.index},{mode}:" if full else f"{record}:"


def _json_object(gpu: RegisteredGpu) -> dict[str, Any]:
    """Give the keys in Go's order; what is zero is left out, so unhealthy is the absence of health.

    Never a null element: the scheduler would dereference it.
    """
    pairs = (
        ("id", gpu.uuid),
        ("index", gpu.index),
        ("count", gpu.count),
        ("devmem", gpu.memory_mib),
        ("devcore", gpu.core_percent),
        ("type", gpu.type),
        ("numa", gpu.numa),
        ("mode", gpu.mode),
        ("migProfiles", [_profile_object(one) for one in gpu.mig_profiles]),
        ("health", gpu.healthy),
    )
    return {key: value for key, value in pairs if value}


def _profile_object(profile: RegisteredProfile) -> dict[str, Any]:
    """Nothing is left out here, whatever it is."""
    return {
        "name": profile.name,
        "memoryMB": profile.memory_mib,
        "core": profile.core_percent,
        "sliceCount": profile.slice_count,
        "placements": [{"start": one.start, "size": one.size} for one in profile.placements],
    }


def _go_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_GO_ESCAPES)


def encode_scores(scores: Scores) -> str:
    """Encode `hami.io/node-nvidia-score`: how close each GPU is to each other one.

    The GPUs stay in their order, the peers of each are sorted, as Go sorts the keys of a map.
    """
    pairs: list[dict[str, Any]] = [
        {"uuid": uuid, "score": dict(sorted(peers.items()))} if peers else {"uuid": uuid}
        for uuid, peers in scores
    ]
    return _go_json(pairs)


# --- reading ---------------------------------------------------------------------------------


def decode_register(text: str, form: str) -> tuple[RegisteredGpu, ...]:
    """Read the annotation as the schedulers of this form do, in the order it has.

    Of a JSON annotation the keys the agent does not write are ignored.

    Raises MalformedAnnotation: the scheduler rejects it, and with it the whole node.
    """
    if len(text) > MAX_CHARS:
        _malformed(text, f"longer than {MAX_CHARS} characters")
    return _decode_json(text) if form == "json" else _decode_csv(text, form)


def retired(text: str) -> str:
    """The same annotation with no GPU that is healthy; empty: it names none, or is unreadable."""
    for form in ("json", "csv7", "csv9"):
        try:
            gpus = decode_register(text, form)
        except MalformedAnnotation:
            continue
        return encode_register((replace(gpu, healthy=False) for gpu in gpus), form) if gpus else ""
    return ""


def says_the_same(text: str, gpus: Iterable[RegisteredGpu], form: str) -> bool:
    """Whether the annotation already tells the scheduler this, in whatever order and spelling."""
    wanted = encode_register(gpus, form)
    if text == wanted:
        return True
    try:
        return Counter(decode_register(text, form)) == Counter(decode_register(wanted, form))
    except MalformedAnnotation:
        return False


def _malformed(text: str, why: str) -> NoReturn:
    raise MalformedAnnotation(f"{REGISTER} {shown(text)} cannot be read: {why}")


def _decode_csv(text: str, form: str) -> tuple[RegisteredGpu, ...]:
    if ":" not in text:
        _malformed(text, "there is no ':'")
    lengths = (_SHORT,) if form == "csv7" else (_SHORT, _FULL)
    gpus = []
    for record in filter(None, text.split(":")):
        fields = record.split(",")
        if len(fields) not in lengths:
            _malformed(record, f"{len(fields)} fields instead of {lengths[-1]}")
        gpus.append(_gpu_of_fields(record, fields))
    return tuple(gpus)


def _gpu_of_fields(record: str, fields: list[str]) -> RegisteredGpu:
    uuid, count, memory, core, type_, numa, health = fields[:_SHORT]
    if health not in _GO_TRUE + _GO_FALSE:
        _malformed(record, f"health is {shown(health)}")
    index, mode = fields[_SHORT:] if len(fields) == _FULL else ("0", "hami-core")
    return RegisteredGpu(
        uuid=uuid,
        count=_number(record, count),
        memory_mib=_number(record, memory),
        core_percent=_number(record, core),
        type=type_,
        numa=_number(record, numa),
        healthy=health in _GO_TRUE,
        index=_in_range(record, _number(record, index), 0),
        mode=mode,
    )


def _number(record: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        _malformed(record, f"{shown(text)} is not a whole number")
    return _in_range(record, int(text), -INT32_MAX - 1)


def _in_range(text: str, value: int, least: int) -> int:
    if not least <= value <= INT32_MAX:
        _malformed(text, f"{value} is out of range")
    return value


def _decode_json(text: str) -> tuple[RegisteredGpu, ...]:
    try:
        items = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _malformed(text, f"it is not JSON ({error})")
    if items is None:
        return ()
    if not isinstance(items, list):
        _malformed(text, "it is not a list")
    return tuple(_gpu_of_object(item) for item in items)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _gpu_of_object(item: Any) -> RegisteredGpu:
    if not isinstance(item, dict):
        _malformed(type(item).__name__, "a GPU is not an object")
    # Go matches keys without regard to case, and takes null for "not given".
    values = {key.lower(): value for key, value in item.items() if value is not None}
    return RegisteredGpu(
        uuid=_text(values, "id"),
        index=_integer(values, "index", least=0),
        count=_integer(values, "count"),
        memory_mib=_integer(values, "devmem"),
        core_percent=_integer(values, "devcore"),
        type=_text(values, "type"),
        numa=_integer(values, "numa"),
        mode=_text(values, "mode"),
        mig_profiles=tuple(_profile_of_object(one) for one in _list(values, "migprofiles")),
        healthy=_flag(values, "health"),
    )


def _profile_of_object(item: Any) -> RegisteredProfile:
    if not isinstance(item, dict):
        _malformed(type(item).__name__, "a MIG profile is not an object")
    values = {key.lower(): value for key, value in item.items() if value is not None}
    placements = []
    for one in _list(values, "placements"):
        if not isinstance(one, dict):
            _malformed(type(one).__name__, "a placement is not an object")
        place = {key.lower(): value for key, value in one.items() if value is not None}
        placements.append(
            MigPlacement(_integer(place, "start", least=0), _integer(place, "size", least=0))
        )
    return RegisteredProfile(
        name=_text(values, "name"),
        memory_mib=_integer(values, "memorymb"),
        core_percent=_integer(values, "core"),
        slice_count=_integer(values, "slicecount"),
        placements=tuple(placements),
    )


def _list(values: Mapping[str, Any], key: str) -> list[Any]:
    value = values.get(key, [])
    if not isinstance(value, list):
        _malformed(key, f"{key} is not a list")
    return value


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key, "")
    if not isinstance(value, str):
        _malformed(key, f"{key} is not a string")
    return value


def _integer(values: Mapping[str, Any], key: str, *, least: int = -INT32_MAX - 1) -> int:
    value = values.get(key, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        _malformed(key, f"{key} is not a whole number")
    return _in_range(key, value, least)


def _flag(values: Mapping[str, Any], key: str) -> bool:
    value = values.get(key, False)
    if not isinstance(value, bool):
        _malformed(key, f"{key} is neither true nor false")
    return value
