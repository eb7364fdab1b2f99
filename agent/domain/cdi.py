"""CDI: how container runtimes are told what belongs to a device, as a file that we write.

A file holds the devices of one kind, `vendor/class`; a container names them `vendor/class=name`.
What all devices of a kind need (libraries, control nodes) is repeated in each of them: the
published schema knows no edits at the top, and runtimes take the same mount twice as one.
Source: Container Device Interface specification 0.5.0 (the oldest version with all that is used
here), https://github.com/cncf-tags/container-device-interface.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

VENDOR = "k8s.device-plugin.nvidia.com"  # as NVIDIA's plugin: pods may name it in annotations
GPU_CLASS, IMEX_CLASS = "gpu", "imex-channel"
VERSION = "0.5.0"
ANNOTATION_PREFIX = "cdi.k8s.io/"
PLUGIN = "nvidia-device-plugin"  # part of an annotation's name
MAX_KEY_CHARS = 63  # of an annotation's name, without its prefix
EVERY = "all"

_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CdiNode:
    """A device node that the container gets."""

    path: str  # in the container
    host_path: str = ""  # empty: the same


@dataclass(frozen=True, slots=True)
class CdiMount:
    """A file or directory of the host: read-only, or a socket.

    To connect to a socket changes no file, but a container inside the container (enroot, pyxis)
    may mount it once more only without the flag that says so: it is not allowed to take that away.
    """

    container_path: str
    host_path: str
    is_socket: bool = False

    @property
    def options(self) -> list[str]:
        """As runtimes are told."""
        common = ["nosuid", "nodev", "rbind", "rprivate"]
        return [*common, "noexec"] if self.is_socket else ["ro", *common]


@dataclass(frozen=True, slots=True)
class CdiHook:
    """A program of the host that the runtime runs while it makes the container."""

    path: str
    args: tuple[str, ...]
    name: str = "createContainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a container gets with a device."""

    nodes: tuple[CdiNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[CdiHook, ...] = ()

    def plus(self, more: "Edits") -> "Edits":
        """Both, each node, mount and hook once."""
        return Edits(
            nodes=tuple(dict.fromkeys((*self.nodes, *more.nodes))),
            mounts=tuple(dict.fromkeys((*self.mounts, *more.mounts))),
            envs={**self.envs, **more.envs},
            hooks=tuple(dict.fromkeys((*self.hooks, *more.hooks))),
        )

    @property
    def empty(self) -> bool:
        """Whether a runtime would refuse a device with these."""
        return not (self.nodes or self.mounts or self.envs or self.hooks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiSpec:
    """All devices of one class."""

    class_name: str
    devices: Mapping[str, Edits]  # by name

    @property
    def kind(self) -> str:
        """`vendor/class`."""
        return f"{VENDOR}/{self.class_name}"

    @property
    def file_name(self) -> str:
        """As NVIDIA's plugin calls it."""
        return f"{VENDOR}-{self.class_name}.json"


def qualified(class_name: str, name: str) -> str:
    """How a container names a device."""
    return f"{VENDOR}/{class_name}={name}"


def annotation_key(prefix: str, response_id: str) -> str:
    """The annotation that names devices; its name part is never too long."""
    return prefix + f"{PLUGIN}_{response_id}"[:MAX_KEY_CHARS]


def nameable(name: str) -> bool:
    """Whether CDI allows it as the name of a device."""
    return bool(_DEVICE_NAME.fullmatch(name))


def with_every(devices: Mapping[str, Edits]) -> dict[str, Edits]:
    """The same and a device `all` that is all of them; nothing for nothing."""
    together = Edits()
    for edits in devices.values():
        together = together.plus(edits)
    return {**devices, EVERY: together} if devices else {}


def encode(spec: CdiSpec) -> bytes:
    """The file, UTF-8. Devices that nobody could be given (no edits, no name) are left out."""
    document = {
        "cdiVersion": VERSION,
        "kind": spec.kind,
        "devices": [
            {"name": name, "containerEdits": _edits(edits)}
            for name, edits in spec.devices.items()
            if nameable(name) and not edits.empty
        ],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def is_encoded_here(content: bytes) -> bool:
    """Whether a file reads as `encode` writes one, e.g. not as NVIDIA's tools do. Total."""
    try:
        document = json.loads(content)
        plain = (json.dumps(document, indent=2) + "\n").encode()
    except (ValueError, RecursionError):
        return False
    return (
        plain == content
        and isinstance(document, dict)
        and list(document) == ["cdiVersion", "kind", "devices"]  # theirs has edits at the top
        and document["cdiVersion"] == VERSION
        and str(document["kind"]).startswith(f"{VENDOR}/")
    )


def _edits(edits: Edits) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in edits.envs.items()],
        "deviceNodes": list(map(_node, edits.nodes)),
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": mount.options,
            }
            for mount in edits.mounts
        ],
        "hooks": [
            {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}
            for hook in edits.hooks
        ],
    }
    return {name: part for name, part in parts.items() if part}


def _node(node: CdiNode) -> dict[str, str]:
    if node.host_path in ("", node.path):
        return {"path": node.path}
    return {"path": node.path, "hostPath": node.host_path}


def nodes(paths: Iterable[str], dev_root: str) -> tuple[CdiNode, ...]:
    """Device nodes below a dev root, each once."""
    root = dev_root.rstrip("/")
    return tuple(CdiNode(path, root + path) for path in dict.fromkeys(paths))
