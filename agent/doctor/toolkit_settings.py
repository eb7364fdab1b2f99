"""The container toolkit's settings: do they let containers have what the agent grants?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml

from agent.adapters.nvml import asking
from agent.config import Config
from agent.doctor import runtime_files as files
from agent.doctor.finding import Check, Finding, failed, ok, skipped, unseen, warning
from agent.doctor.host import Host
from agent.doctor.runtime import runtimes
from agent.doctor.runtime_files import table, text
from agent.doctor.toolkit import CDI_DIRS, GENERATE, described, installed, spec_files, spec_of
from agent.domain.gpu import GpuInventory

TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
# The GPU Operator's: beside its programs, which are told to read this one and no other.
BESIDE = ".config/nvidia-container-runtime/config.toml"
BY_ITSELF = "nvidia-container-runtime.mode=auto"
MAKES_SPECS = (1, 18, 0)  # from here on mode auto describes what is asked for by itself
DEFAULT_KIND = "nvidia.com/gpu"
# A hook of the toolkit from 1.20.1 on. It has the driver, from r615 on, reserve for a container
# what its NVIDIA_GPU_MEMORY_REQUEST (or _LIMIT) says, by its cgroup of version 2.
RESERVES, HAS_IT, OFFERED_BY = "apply-cuda-memory-limits", (1, 20, 1), 615
NO_HOOKS = "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks"
CGROUP2 = "/sys/fs/cgroup/cgroup.controllers"


def toolkit_config(host: Host) -> Finding:
    """Settings of NVIDIA's runtime that keep GPUs from our containers."""
    if host.contained:
        return unseen()
    name = settings_file(host)
    path = host.path(name)
    content = host.read_if_there(path)
    if content is None and not path.is_dir():
        return ok(f"no {path}: the toolkit's defaults hold")
    document = None if content is None else files.toml_of(content)
    if document is None:
        return failed(
            f"{path} cannot be understood, and no container with a GPU starts",
            f"mv {path} {path}.broken && "
            f"{setting_it(name, 'nvidia-container-runtime.log-level=info')}",
        )
    there = installed(host)
    problem = toolkit_objection(
        document, host.config.device_list_strategy, there[0] if there else None
    )
    if problem:
        said, setting = problem
        return failed(f"{path}: {said}", setting_it(name, setting))
    return ok(f"{path} lets containers have what is granted")


def settings_file(host: Host) -> str:
    """What NVIDIA's runtime reads, by the program that kubelet's container runtime starts."""
    for one in runtimes(host)[:1]:
        known = one.runtime
        names = [known.default] if known.is_nvidia(known.default) else known.nvidia_handlers[:1]
        for name in names:
            beside = Path(known.handlers.get(name, "")).parent / BESIDE
            if beside.is_absolute() and host.path(beside).exists():
                return str(beside)
    return TOOLKIT


def setting_it(name: str, setting: str) -> str:
    """The command for this file; its program is beside it, and perhaps nowhere else."""
    if name == TOOLKIT:
        return f"nvidia-ctk config --in-place --set {setting}"
    program = Path(name.removesuffix(BESIDE)) / "nvidia-ctk"
    return (
        f"{program} config --config-file={name} --in-place --set {setting}"
        "   # GPU Operator: and in its toolkit.env, or it is as before at its next start"
    )


def _settings(host: Host) -> tuple[str, Mapping[str, Any]]:
    """The file and what it says, as far as that is understood."""
    name = settings_file(host)
    return name, files.toml_of(host.read_if_there(host.path(name)) or "") or {}


def toolkit_objection(
    document: Mapping[str, Any],
    strategies: tuple[str, ...],
    version: tuple[int, int, int] | None = None,
) -> tuple[str, str] | None:
    """What is wrong and the setting that mends it; None: nothing. Total."""
    mode = mode_of(document)
    by_cli = mode == "legacy" or (mode == "auto" and (version is None or version < MAKES_SPECS))
    described_here = all(one.startswith("cdi-") for one in strategies)  # to it all GPUs are void
    if (
        by_cli
        and not described_here
        and table(document.get("nvidia-container-cli")).get("no-cgroups") is True
    ):
        return (
            "no-cgroups is true, so containers may not open their GPU",
            "nvidia-container-cli.no-cgroups=false",
        )
    if mode == "csv" and _by_name(strategies):
        return (
            "the runtime's mode is csv, that of Tegra, which knows no GPU by what the agent names",
            "nvidia-container-runtime.mode=auto",
        )
    by_mounts = document.get("accept-nvidia-visible-devices-as-volume-mounts") is True
    by_variable = (
        document.get("accept-nvidia-visible-devices-envvar-when-unprivileged") is not False
    )
    if "volume-mounts" in strategies and not by_mounts:
        return (
            "GPUs are named by mounts (--device-list-strategy), and those are not accepted",
            "accept-nvidia-visible-devices-as-volume-mounts=true",
        )
    if strategies == ("envvar",) and not by_variable:
        return (
            "GPUs are named by NVIDIA_VISIBLE_DEVICES, which unprivileged containers may not use",
            "accept-nvidia-visible-devices-envvar-when-unprivileged=true",
        )
    return None


def mode_of(document: Mapping[str, Any]) -> str:
    """How NVIDIA's runtime finds what belongs to a GPU. Total."""
    return text(table(document.get("nvidia-container-runtime")).get("mode")) or "auto"


def _by_name(strategies: tuple[str, ...]) -> bool:
    """Whether it is NVIDIA's runtime alone that is told of GPUs."""
    return not any(one.startswith("cdi-") for one in strategies)


def cdi_names(host: Host) -> Finding:
    """In mode cdi NVIDIA's runtime gives what a spec names, and nobody else writes that one."""
    if host.contained:
        return unseen()
    name, document = _settings(host)
    if mode_of(document) != "cdi" or not _by_name(host.config.device_list_strategy):
        return ok("NVIDIA's runtime is not told to look into specs for what the agent names")
    if host.config.sharing.mode == "mig":
        return failed(
            f"{name} has NVIDIA's runtime give what CDI specs name, and none has a MIG device "
            "that is made for a container",
            setting_it(name, BY_ITSELF),
        )
    kind, folders = places(document)
    missing = sorted(_granted(host) - described(host, kind, folders))
    if missing:
        return failed(
            f"{name} has NVIDIA's runtime give what CDI specs name, and no spec in "
            f"{', '.join(folders)} has {kind}={missing[0]}: containers with it do not start",
            f"{generating(f'{folders[0]}/nvidia.yaml', kind)}   # again whenever GPUs or driver "
            f"change; or: {setting_it(name, BY_ITSELF)}",
        )
    return ok(f"specs have every GPU as {kind}")


def generating(path: str, kind: str) -> str:
    """The command that writes a spec of this kind."""
    vendor, _, of = kind.partition("/")
    return GENERATE.format(path) + (
        "" if kind == DEFAULT_KIND else f" --vendor={vendor} --class={of}"
    )


def places(document: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The kind that a plain name is of, and where specs are looked for. Total."""
    modes = table(table(document.get("nvidia-container-runtime")).get("modes"))
    cdi = table(modes.get("cdi"))
    named = cdi.get("spec-dirs")
    folders = [one for one in named if text(one)] if isinstance(named, list) else []
    # /var/run is a link, perhaps out of the root
    plain = ("/run" + one.removeprefix("/var/run") if one.startswith("/var/run/") else one
             for one in folders)  # fmt: skip
    return text(cdi.get("default-kind")) or DEFAULT_KIND, tuple(plain) or CDI_DIRS


def _granted(host: Host) -> set[str]:
    """What containers may be told to have, as the agent names it."""
    by_index = host.config.device_id_strategy == "index"
    divided = host.config.mode == "nvidia" and host.config.mig_strategy != "none"
    names: set[str] = set()
    for gpu in host.config.sharing.offered(GpuInventory(gpus=host.gpus)):
        if divided and gpu.mig_devices:
            migs = enumerate(gpu.mig_devices)
            names |= {f"{gpu.index}:{place}" if by_index else mig.uuid for place, mig in migs}
        else:
            names.add(str(gpu.index) if by_index else gpu.uuid)
    return names


def reservations(host: Host) -> Finding:
    """No pod's author may reserve memory of a GPU that others share."""
    if host.contained:
        return unseen()
    there = installed(host)
    if there is None:
        return skipped("no version of the container toolkit is found", "nvidia-ctk --version")
    if why := _never_reserved(host, there[0]):
        return ok(why)
    fix = _without_reservations(host)
    if not fix:
        return ok(f"NVIDIA's runtime does not run its hook {RESERVES}")
    return warning(
        "a pod's author can reserve memory of a shared GPU for a container by "
        f"NVIDIA_GPU_MEMORY_REQUEST: NVIDIA's runtime runs its hook {RESERVES}",
        fix,
    )


def _never_reserved(host: Host, version: tuple[int, int, int]) -> str:
    """Why nobody can do that, whatever the toolkit is told; empty: that decides."""
    if not _shared(host.config):
        return "no GPU is shared here"
    if not _by_name(host.config.device_list_strategy):
        return "the agent's own CDI files have no hook for it"
    with asking("the driver's version cannot be read"):
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    branch = driver.partition(".")[0]
    offered = branch.isdecimal() and int(branch) >= OFFERED_BY
    if version >= HAS_IT and offered and host.path(CGROUP2).exists():
        return ""
    return f"toolkit {'.'.join(map(str, version))}, driver {driver} and cgroups offer none"


def _shared(config: Config) -> bool:
    """Whether several containers have a GPU or MIG device."""
    replicas = any(one.resources for one in (config.time_slicing, config.mps))
    return config.sharing.mode != "mig" and (config.mode != "nvidia" or replicas)


def _without_reservations(host: Host) -> str:
    """The command that takes the hook away; empty: it is not run."""
    name, document = _settings(host)
    mode = mode_of(document)
    if mode == "cdi":
        kind, folders = places(document)
        for path in spec_files(host, folders):
            content = host.read_if_there(path) or ""
            spec = spec_of(path, content) if RESERVES in content else None
            if spec and spec.kind == kind:  # others, as of resource claims, are not asked for
                return f"{generating(str(path), kind)} --disable-hook {RESERVES}"
        return ""
    named = disabled_hooks(document)
    if mode not in ("auto", "jit-cdi") or {RESERVES, "all"} & set(named):
        return ""
    return setting_it(name, f"{NO_HOOKS}={':'.join((*named, RESERVES))}")


def disabled_hooks(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Hooks that NVIDIA's runtime is told to leave out where it describes GPUs. Total."""
    modes = table(table(document.get("nvidia-container-runtime")).get("modes"))
    named = table(modes.get("jit-cdi")).get("nvcdi-disable-hooks")
    return tuple(one for one in named if text(one)) if isinstance(named, list) else ()


CHECKS = (
    Check(
        name="toolkit-config",
        question="does the toolkit let containers have what is granted?",
        look=toolkit_config,
    ),
    Check(
        name="cdi-names",
        question="does NVIDIA's runtime find what is granted where it looks?",
        look=cdi_names,
        needs=("toolkit-config", "cdi-specs", "gpus"),
    ),
    Check(
        name="reservations",
        question="can nobody reserve memory of a shared GPU?",
        look=reservations,
        needs=("toolkit-config", "driver-match"),
    ),
)
