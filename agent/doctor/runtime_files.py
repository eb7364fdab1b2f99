"""What the configuration files of container runtimes say.

All readers are total: files of a host are written by many hands. Sources: containerd,
docs/cri/config.md (versions 2 and 3); CRI-O, crio.conf(5); Docker, daemon.json. That containerd
reads CDI files by itself from 2.0 on, and from 1.7 on when it is told to, says its `config dump`.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

NVIDIA = "nvidia-container-runtime"
CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")  # 3, 2, 1
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # where runtimes look that are not told others
CDI_BY_ITSELF = 3  # version of containerd's configuration that only those have which read CDI files
CRIO_OWN = "crun (runc before 1.31)"
MAX_DEPTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What one container runtime does with containers."""

    kind: str  # containerd | cri-o | docker
    default: str  # handler of containers that name none
    handlers: Mapping[str, str] = field(default_factory=dict)  # handler -> its program
    reads_cdi: bool | None = None  # None: its configuration does not tell
    cdi_folders: tuple[str, ...] = CDI_FOLDERS
    search_path: tuple[str, ...] = ()  # that handlers are started with, as far as it is set

    def is_nvidia(self, handler: str) -> bool:
        """Whether a handler is NVIDIA's."""
        return NVIDIA in self.handlers.get(handler, "") or handler.startswith("nvidia")

    @property
    def program(self) -> str:
        """What starts containers that name no handler."""
        return self.handlers.get(self.default, self.default)

    @property
    def nvidia_handlers(self) -> tuple[str, ...]:
        """NVIDIA's, by name."""
        return tuple(sorted(name for name in self.handlers if self.is_nvidia(name)))


def toml_of(text: str) -> Mapping[str, Any] | None:
    """A TOML document; None: it is none."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return None


def merged(documents: Iterable[Mapping[str, Any]], depth: int = 0) -> dict[str, Any]:
    """Later documents win, table by table."""
    whole: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            before = whole.get(key)
            if isinstance(before, dict) and isinstance(value, dict) and depth < MAX_DEPTH:
                whole[key] = merged((before, value), depth + 1)
            else:
                whole[key] = value
    return whole


def imports_of(document: Mapping[str, Any]) -> list[str]:
    """Patterns of further files of containerd."""
    found = document.get("imports")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def containerd(document: Mapping[str, Any]) -> Runtime:
    """containerd's, of whichever version."""
    plugins = table(document.get("plugins"))
    plugin = merged(table(plugins.get(name)) for name in reversed(CRI_PLUGINS))
    section = table(plugin.get("containerd"))
    handlers = {
        name: text(table(table(handler).get("options")).get("BinaryName"))
        or text(table(handler).get("runtime_type"))
        for name, handler in table(section.get("runtimes")).items()
    }
    return Runtime(
        kind="containerd",
        default=text(section.get("default_runtime_name")) or "runc",
        handlers=handlers,
        reads_cdi=_containerd_reads_cdi(plugin.get("enable_cdi"), document.get("version")),
        cdi_folders=_cdi_folders(plugin),
    )


def _containerd_reads_cdi(told: Any, version: Any) -> bool | None:
    if isinstance(told, bool):
        return told
    return True if isinstance(version, int) and version >= CDI_BY_ITSELF else None


def _cdi_folders(section: Mapping[str, Any]) -> tuple[str, ...]:
    told = section.get("cdi_spec_dirs")
    return tuple(filter(None, map(text, told))) if isinstance(told, list) else CDI_FOLDERS


def crio(document: Mapping[str, Any]) -> Runtime:
    """CRI-O's."""
    section = table(table(document.get("crio")).get("runtime"))
    handlers = {
        name: text(table(handler).get("runtime_path")) or name
        for name, handler in table(section.get("runtimes")).items()
    }
    return Runtime(
        kind="cri-o",
        default=text(section.get("default_runtime")) or CRIO_OWN,
        handlers=handlers,
        reads_cdi=True,
        cdi_folders=_cdi_folders(section),
        search_path=_search_path(section),
    )


def _search_path(section: Mapping[str, Any]) -> tuple[str, ...]:
    """As CRI-O sets it for NVIDIA's handlers, or for all."""
    handlers = table(section.get("runtimes")).items()
    named = [table(handler) for name, handler in handlers if name.startswith("nvidia")]
    told = [one.get("monitor_env") for one in (*named, {"monitor_env": section.get("conmon_env")})]
    words = [text(word) for some in told if isinstance(some, list) for word in some]
    found = [word.removeprefix("PATH=") for word in words if word.startswith("PATH=")]
    return tuple(at for at in ":".join(found).split(":") if at.startswith("/"))


def json_of(content: str) -> Mapping[str, Any] | None:
    """A JSON object; None: it is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def docker(document: Mapping[str, Any]) -> Runtime:
    """Docker's, which kubelet reaches through cri-dockerd."""
    handlers = {
        name: text(table(handler).get("path")) or name
        for name, handler in table(document.get("runtimes")).items()
    }
    return Runtime(
        kind="docker", default=text(document.get("default-runtime")) or "runc", handlers=handlers
    )


def table(value: Any) -> Mapping[str, Any]:
    """It, if it is a table; else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """It, if it is text; else none."""
    return value if isinstance(value, str) else ""
