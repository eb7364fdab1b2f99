"""The container runtime's room: is there one, and does it give containers the driver?"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.doctor import runtime_files as files
from agent.doctor import units
from agent.doctor.finding import Check, Finding, failed, ok, unseen, warning
from agent.doctor.host import Host, is_socket
from agent.doctor.runtime_cdi import by_cdi_alone, given_by_cdi
from agent.doctor.runtime_files import Runtime

K3S_KINDS = ("k3s", "rke2")
K3S_SOCKET = "/run/k3s/containerd/containerd.sock"  # RKE2's, too
SOCKETS = {
    "containerd": ("/run/containerd/containerd.sock",),
    "k3s": (K3S_SOCKET,),
    "rke2": (K3S_SOCKET,),
    "cri-o": ("/run/crio/crio.sock", "/var/run/crio/crio.sock"),
    "docker": (
        *("/run/cri-dockerd.sock", "/run/k3s/cri-dockerd/cri-dockerd.sock"),
        "/run/docker.sock",
    ),
}
# Each of these runs a containerd of its own, and reads no other file.
CONTAINERD = {
    "containerd": "/etc/containerd/config.toml",
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
}
CRIO, CRIO_DIRS = "/etc/crio/crio.conf", ("/usr/lib/crio/crio.conf.d", "/etc/crio/crio.conf.d")
DOCKER = "/etc/docker/daemon.json"
# Where kubelet is told its runtime, the last word first: flags (kubeadm up to 1.35), the node's own
# file (kubeadm's NodeLocalCRISocket), the cluster's, what k3s and RKE2 write.
KUBELET = (
    "/var/lib/kubelet/kubeadm-flags.env",
    "/var/lib/kubelet/instance-config.yaml",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf",
    "/var/lib/rancher/rke2/agent/etc/kubelet.conf.d/00-rke2-defaults.conf",
)
MAX_IMPORTS = 100
MAX_DEPTH = 8  # of directories of drop-ins
_ENDPOINT = re.compile(
    r"""(?:^containerRuntimeEndpoint:\s*|--container-runtime-endpoint[= ])["']?([^\s"']{1,200})""",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What of a runtime is on the host."""

    kind: str
    sockets: tuple[str, ...]
    files: tuple[str, ...]
    broken: tuple[str, ...]  # files that cannot be understood
    runtime: Runtime


def _documents(host: Host, paths: list[Path], read: Any) -> tuple[list[Any], list[str], list[str]]:
    documents, seen, broken = [], [], []
    for path in paths:
        content = host.read_if_there(path)
        if content is None:
            continue
        seen.append(str(path))
        document = read(content)
        if document is None:
            broken.append(str(path))
        else:
            documents.append(document)
    return documents, seen, broken


def _containerd_files(host: Host, name: str) -> list[Path]:
    """The configuration and what it imports, as patterns relative to it."""
    main = host.path(name)
    content = host.read_if_there(main)
    if content is None:
        return []
    found = [main]
    for pattern in files.imports_of(files.toml_of(content) or {})[:MAX_IMPORTS]:
        absolute = pattern if pattern.startswith("/") else str(main.parent / pattern)
        inside = host.path(absolute) if pattern.startswith("/") else Path(absolute)
        try:
            found += sorted(inside.parent.glob(inside.name))[:MAX_IMPORTS]
        except (ValueError, OSError, IndexError):
            continue
    return found


def _files_below(host: Host, folder: Path, depth: int = 0) -> list[Path]:
    """All that CRI-O reads there, in its order: directories at the place of their names."""
    found = []
    for entry in host.entries(folder):
        if depth < MAX_DEPTH and entry.is_dir() and not entry.is_symlink():
            found += _files_below(host, entry, depth + 1)
        else:
            found.append(entry)
    return found


def runtimes(host: Host) -> list[Found]:
    """Every runtime of which there is a configuration or a socket; kubelet's own first."""
    crio_files = [host.path(CRIO)]
    crio_files += [file for folder in CRIO_DIRS for file in _files_below(host, host.path(folder))]
    k3s = _k3s_or_rke2(host)
    found = []
    for kind, paths, read, understood in (
        *(
            (kind, _containerd_files(host, name), files.toml_of, files.containerd)
            for kind, name in CONTAINERD.items()
        ),
        ("cri-o", crio_files, files.toml_of, files.crio),
        ("docker", [host.path(DOCKER)], files.json_of, files.docker),
    ):
        documents, seen, broken = _documents(host, paths, read)
        own = () if kind in K3S_KINDS and kind != k3s else SOCKETS[kind]
        sockets = tuple(name for name in own if is_socket(host.path(name)))
        if seen or sockets:
            found.append(
                Found(
                    kind=kind,
                    sockets=sockets,
                    files=tuple(seen),
                    broken=tuple(broken),
                    runtime=understood(files.merged(documents)),
                )
            )
    told = (kubelets_runtime(host.read_if_there(host.path(name)) or "") for name in KUBELET)
    chosen = next(filter(None, told), "") or units.of_kubelet(host)
    chosen = k3s if chosen.startswith(K3S_KINDS) else chosen
    return sorted(found, key=lambda one: (one.kind != chosen, not one.sockets))


def _k3s_or_rke2(host: Host) -> str:
    """Whose containerd it is that listens where both have theirs."""
    return "rke2" if host.path(CONTAINERD["rke2"]).exists() else "k3s"


def kubelets_runtime(text: str) -> str:
    """Which runtime kubelet's flags or configuration name; empty: none that we know. Total."""
    found = _ENDPOINT.search(text)
    words = {"crio": "cri-o", "dockerd": "docker", "/k3s/": "k3s", "containerd": "containerd"}
    return next((kind for word, kind in words.items() if found and word in found[1]), "")


def present(host: Host) -> Finding:
    """One that kubelet can use."""
    if host.contained:
        return unseen()
    found = runtimes(host)
    if not found:
        return failed(
            f"below {host.root} there is no configuration and no socket of containerd, CRI-O or "
            "Docker",
            "systemctl status containerd crio docker",
        )
    return ok("; ".join(f"{one.kind} ({', '.join((*one.sockets, *one.files))})" for one in found))


def readable(host: Host) -> Finding:
    """A file that cannot be understood keeps the runtime from its next start."""
    for one in runtimes(host):
        if one.broken:
            return failed(
                f"{one.broken[0]} cannot be understood: {one.kind} does not start again with it",
                f"{_checker(one.kind)}; systemctl restart {units.of_runtime(host, one.kind)}",
            )
    return ok("every configuration file is understood")


def _checker(kind: str) -> str:
    if kind in K3S_KINDS:  # their own program writes the file, from a template that may be there
        return f"ls {Path(CONTAINERD[kind]).parent}/*.tmpl"
    return {
        "containerd": "containerd config dump > /dev/null",
        "cri-o": "crio config > /dev/null",
        "docker": f"dockerd --validate --config-file {DOCKER}",
    }[kind]


def nvidia_runtime(host: Host) -> Finding:
    """Containers find the driver's libraries through NVIDIA's handler, or by CDI without it."""
    one = runtimes(host)[0]
    runtime, handlers = one.runtime, one.runtime.nvidia_handlers
    default_is_nvidia = runtime.default in runtime.handlers and runtime.is_nvidia(runtime.default)
    reads_annotations = default_is_nvidia and "cdi-annotations" in host.config.device_list_strategy
    if by_cdi_alone(host) and (one.kind == "docker" or not reads_annotations):
        restart = f"systemctl restart {units.of_runtime(host, one.kind)}"
        file = CONTAINERD.get(one.kind, CRIO)
        return given_by_cdi(host, one.kind, runtime, file, restart)
    if default_is_nvidia:
        return ok(f"{one.kind}'s default runtime is {runtime.default}")
    if handlers:
        return warning(
            f"{one.kind}'s default runtime is {runtime.default}: only pods with runtimeClassName "
            f"get the driver, by {' or '.join(handlers)}",
            f"{_default_is_nvidia(host, one.kind)}   # or, for each such pod: runtimeClassName: "
            f"{handlers[0]}",
        )
    return failed(
        f"{one.kind} has no handler of NVIDIA's ({', '.join(sorted(runtime.handlers)) or 'none'}): "
        "containers do not get the driver",
        _has_nvidia(host, one.kind),
    )


def _default_is_nvidia(host: Host, kind: str) -> str:
    """Make the handler that is there the one of all containers."""
    unit = units.of_runtime(host, kind)
    if kind in K3S_KINDS:
        return (
            f"echo 'default-runtime: nvidia' >> /etc/rancher/{kind}/config.yaml && "
            f"systemctl restart {unit}"
        )
    configure = f"nvidia-ctk runtime configure --runtime={unit} --set-as-default"
    # CRI-O's packages have a file that is read after crio.conf, where toolkits up to 1.17 write.
    if kind == "cri-o":
        configure += f" --config={CRIO_DIRS[-1]}/99-nvidia.conf"
    return f"{configure} && systemctl restart {unit}"


def _has_nvidia(host: Host, kind: str) -> str:
    """Have a handler of NVIDIA's; k3s and RKE2 look for its program whenever they start."""
    if kind in K3S_KINDS:
        unit = units.of_runtime(host, kind)
        return (
            f"apt-get install nvidia-container-toolkit && systemctl restart {unit}   # or dnf; a "
            f"{CONTAINERD[kind]}.tmpl of yours has to keep NVIDIA's runtimes in"
        )
    return _default_is_nvidia(host, kind)


def runtime_program(host: Host) -> Finding:
    """The program that the handler names is there."""
    runtime = runtimes(host)[0].runtime
    for handler in runtime.nvidia_handlers:
        program = runtime.handlers[handler]
        if not program.startswith("/"):
            continue
        path = host.path(program)
        if not os.path.lexists(path):
            return failed(
                f"the handler {handler} starts {program}, which does not exist",
                "apt-get install nvidia-container-toolkit   # or dnf",
            )
        if path.exists() and not os.access(path, os.X_OK):
            return failed(f"{program} cannot be executed", f"chmod 755 {program}")
    programs = [runtime.handlers[name] for name in runtime.nvidia_handlers]
    return ok(", ".join(programs) or "no handler names a program")


CHECKS = (
    Check(name="runtime", question="is there a container runtime?", look=present),
    Check(
        name="runtime-config",
        question="can its configuration be understood?",
        look=readable,
        needs=("runtime",),
    ),
    Check(
        name="nvidia-runtime",
        question="does it give containers the driver?",
        look=nvidia_runtime,
        needs=("runtime-config",),
    ),
    Check(
        name="runtime-program",
        question="is NVIDIA's runtime there?",
        look=runtime_program,
        needs=("nvidia-runtime",),
    ),
)
