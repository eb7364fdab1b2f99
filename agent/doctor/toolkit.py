"""The container toolkit's room: its version against known holes, and its CDI specs."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent.doctor.finding import Check, Finding, failed, ok, skipped, unseen, warning
from agent.doctor.host import Host
from agent.doctor.runtime_files import table, text

# Source: NVIDIA's security bulletins of September 2024, February 2025 and July 2025.
HOLES: tuple[tuple[tuple[int, int, int], str, str], ...] = (
    ((1, 16, 2), "CVE-2024-0132", "an image can take over the host"),
    ((1, 17, 4), "CVE-2025-23359", "the same by another way"),
    ((1, 17, 8), "CVE-2025-23266", "an image's LD_PRELOAD runs as root on the host"),
    ((1, 17, 8), "CVE-2025-23267", "an image can overwrite files of the host by links"),
)
PACKAGES = ("nvidia-container-toolkit", "nvidia-container-toolkit-base")
DPKG = "/var/lib/dpkg/status"
PROGRAMS = ("/usr/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-ctk")
CDI_DIRS = ("/etc/cdi", "/run/cdi")  # /var/run is a link, perhaps out of the root
UPGRADE = (
    "apt-get install --only-upgrade nvidia-container-toolkit nvidia-container-toolkit-base "
    "libnvidia-container-tools libnvidia-container1   # GPU Operator: its toolkit.version"
)
GENERATE = "nvidia-ctk cdi generate --output={}"
MAX_DEVICES = 10_000
_VERSION = re.compile(r"(?<![\d.])(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?![\d.])", re.ASCII)


def version_of(said: str) -> tuple[int, int, int] | None:
    """The first version in a text; None: there is none. Total."""
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def dpkg_version(status: str, package: str) -> str:
    """The version of an installed package in dpkg's status; empty: it is not installed. Total."""
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line[:40])
        if fields.get("Package") == package and "installed" in fields.get("Status", "").split():
            return fields.get("Version", "")
    return ""


def _versions(host: Host) -> Iterator[tuple[str, str]]:
    """What tells the toolkit's version, and what it says."""
    status = host.read_if_there(host.path(DPKG)) or ""
    for package in PACKAGES:
        if said := dpkg_version(status, package):
            yield f"{package} in {DPKG}", said
    if host.root != Path("/"):
        return  # programs of another root are not run
    for program in PROGRAMS:
        if Path(program).is_file():
            try:
                ended = host.run_child([program, "--version"], {"PATH": "/usr/bin:/bin"})
            except OSError:  # it cannot be executed, and so tells nothing
                continue
            yield f"`{program} --version`", ended.output


def installed(host: Host) -> tuple[tuple[int, int, int], str] | None:
    """The toolkit's version and what told it; None: nothing did."""
    for where, said in _versions(host):
        if version := version_of(said):
            return version, where
    return None


def toolkit_version(host: Host) -> Finding:
    """Not one with known holes."""
    if host.contained:
        return unseen()
    if there := installed(host):
        version, where = there
        dotted = ".".join(map(str, version))
        holes = [hole for hole in HOLES if version < hole[0]]
        if holes:
            mended = ".".join(map(str, max(hole[0] for hole in holes)))
            named = "; ".join(f"{name} ({what})" for _, name, what in holes)
            return failed(
                f"the toolkit is {dotted} ({where}), with {named}; {mended} is not", UPGRADE
            )
        return ok(f"the toolkit is {dotted} ({where}), without a known hole")
    return skipped("no version of the container toolkit is found", "nvidia-ctk --version")


# --- CDI --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spec:
    """One file of CDI devices."""

    path: Path
    kind: str
    devices: tuple[str, ...]
    files: tuple[str, ...]  # of the host, that containers get


def spec_of(path: Path, content: str) -> Spec | None:
    """Read a spec; None: it is none. Total. Source: CNCF, container-device-interface, SPEC.md."""
    try:
        document = json.loads(content) if path.suffix == ".json" else _yaml(content)
    except (ValueError, yaml.YAMLError, RecursionError, TypeError, AttributeError):
        return None
    if not isinstance(document, Mapping):
        return None
    kind, devices = text(document.get("kind")), document.get("devices")
    if "/" not in kind or not isinstance(devices, list) or not text(document.get("cdiVersion")):
        return None
    names, wanted = [], list(_host_files(document.get("containerEdits")))
    for device in devices[:MAX_DEVICES]:
        name = table(device).get("name")
        if not isinstance(name, str | int):
            return None
        names.append(str(name))
        wanted += _host_files(table(device).get("containerEdits"))
    return Spec(path, kind, tuple(names), tuple(dict.fromkeys(wanted)))


def _yaml(content: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # specs can be long
    return yaml.load(content, loader)  # noqa: S506 - both are the safe one


def _host_files(edits: Any) -> Iterator[str]:
    found = table(edits)
    for key, names in (("deviceNodes", ("hostPath", "path")), ("mounts", ("hostPath",))):
        rows = found.get(key)
        for row in rows if isinstance(rows, list) else ():
            said = next((text(table(row).get(name)) for name in names if table(row).get(name)), "")
            if said.startswith("/"):
                yield said


def spec_files(host: Host, folders: Iterable[str] = CDI_DIRS) -> list[Path]:
    """What is in these directories and is named as runtimes name specs."""
    return [
        path
        for folder in folders
        for path in host.entries(host.path(folder))
        if path.suffix in (".json", ".yaml", ".yml") and not path.is_dir()
    ]


def _nvidia_specs(host: Host) -> list[Spec]:
    specs = [spec_of(path, host.read(path)) for path in spec_files(host)]
    return [spec for spec in specs if spec and spec.kind.startswith("nvidia.com/")]


def described(host: Host, kind: str, folders: Iterable[str]) -> set[str]:
    """The names of a kind's devices in these directories of the host."""
    specs = [spec_of(path, host.read(path)) for path in spec_files(host, folders)]
    return {name for spec in specs if spec and spec.kind == kind for name in spec.devices}


def cdi_valid(host: Host) -> Finding:
    """The runtime refuses containers when it cannot read one."""
    if host.contained:
        return unseen()
    paths = spec_files(host)
    for path in paths:
        if spec_of(path, host.read_if_there(path) or "") is None:  # or a link to nothing
            return failed(
                f"{path} is no CDI spec: the runtime reports errors with every CDI device",
                GENERATE.format(path) if "nvidia" in path.name else f"mv {path} {path}.broken",
            )
    return ok(f"{len(paths)} specs, all readable" if paths else f"none in {', '.join(CDI_DIRS)}")


def cdi_fresh(host: Host) -> Finding:
    """What they name exists; after a driver upgrade it does not."""
    for spec in _nvidia_specs(host):
        missing = [name for name in spec.files if not os.path.lexists(host.path(name))]
        if missing:
            return warning(
                f"{spec.path} names {len(missing)} files that do not exist, such as {missing[0]}: "
                "it was written for another driver",
                GENERATE.format(spec.path),
            )
    return ok("what they name exists")


def cdi_unique(host: Host) -> Finding:
    """A device that two files describe is described by none."""
    seen: dict[str, Path] = {}
    for spec in _nvidia_specs(host):
        for name in spec.devices:
            other = seen.setdefault(f"{spec.kind}={name}", spec.path)
            if other != spec.path and other.parent == spec.path.parent:
                return warning(
                    f"{other} and {spec.path} both describe {spec.kind}={name}: the runtime takes "
                    "neither",
                    f"rm {spec.path}   # keep the one that is generated at boot",
                )
    return ok("no device is described twice")


CHECKS = (
    Check(
        name="toolkit-version",
        question="is the container toolkit without known holes?",
        look=toolkit_version,
    ),
    Check(name="cdi-specs", question="can the CDI specs be read?", look=cdi_valid),
    Check(
        name="cdi-fresh",
        question="do they fit the driver that is installed?",
        look=cdi_fresh,
        needs=("cdi-specs",),
    ),
    Check(
        name="cdi-conflicts",
        question="is no CDI device described twice?",
        look=cdi_unique,
        needs=("cdi-specs",),
    ),
)
