"""The driver's room: kernel module, NVML, GPUs, device nodes."""

import re
import stat
from pathlib import Path

import pynvml

from agent.adapters.nvml import asking, if_offered, sysfs_name
from agent.adapters.nvml_mig import NODE_DIR
from agent.doctor.finding import Check, Finding, failed, ok, skipped, unseen, warning
from agent.doctor.host import Host
from agent.domain.gpu import Gpu, GpuInventory
from agent.errors import NvmlError

OLDEST_CUDA, NEWEST_CUDA = 12_000, 13_050  # what the hook's table of functions was read from
RESET = "nvidia-smi --gpu-reset -i {}   # it must be unused; else drain the node and reboot"
SINGLE = (pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
REBOOT = "dmesg | grep -iE 'nvrm|xid' | tail   # a driver that hangs needs a reboot of the node"
_KERNEL_VERSION = re.compile(r"^NVRM version:.*?\s(\d{3}\.\d{1,4}(?:\.\d{1,4})?)\s", re.MULTILINE)

_CONFIG_MINOR = re.compile(r"^config (\d{1,7})$", re.MULTILINE | re.ASCII)


def kernel_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version; empty: there is none in this text."""
    found = _KERNEL_VERSION.search(text)
    return found[1] if found else ""


def driver_loaded(host: Host) -> Finding:
    """The kernel module says so itself."""
    path = host.proc / "driver/nvidia/version"
    text = host.read_if_there(path)
    if text is None and host.nvml_error is None:
        return ok(f"the driver's library starts; {path} does not exist (WSL has none)")
    if text is None:
        return failed(
            f"{path} does not exist: the kernel module `nvidia` is not loaded",
            "modprobe nvidia && nvidia-smi   # no such module: install the driver",
        )
    version = kernel_version(text)
    return ok(f"kernel module {version or 'of an unknown version'} ({path})")


def nvml(host: Host) -> Finding:
    """NVML can be loaded and started. Another version than the kernel's is another check's."""
    error = host.nvml_error
    if error is None or host.nvml_stale:
        return ok("libnvidia-ml.so.1 was loaded")
    return failed(
        str(error),
        "ldconfig -p | grep libnvidia-ml   # in a pod: is it NVIDIA's runtime that starts it "
        "(runtimeClassName: nvidia)?",
    )


def driver_match(host: Host) -> Finding:
    """Kernel module and libraries are of one version."""
    if host.nvml_stale:
        return failed(
            f"{host.nvml_error}",
            "reboot   # or stop all that uses GPUs, then: rmmod nvidia_uvm nvidia && nvidia-smi",
        )
    with asking("the driver's version cannot be read"):
        library = str(pynvml.nvmlSystemGetDriverVersion())
    kernel = kernel_version(host.read_if_there(host.proc / "driver/nvidia/version") or "")
    if kernel and kernel != library:
        return failed(
            f"the kernel module is {kernel}, the libraries are {library}: the driver was upgraded "
            "without a reboot",
            "reboot   # or stop all that uses GPUs, then: rmmod nvidia_uvm nvidia && nvidia-smi",
        )
    also = "kernel module and libraries are both" if kernel else "the libraries are"
    return ok(f"{also} {library}")


def cuda_range(_host: Host) -> Finding:
    """The hook knows the functions of this driver."""
    with asking("the driver's CUDA version cannot be read"):
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    said = f"the driver offers CUDA {_dotted(version)}"
    known = f"{_dotted(OLDEST_CUDA)} to {_dotted(NEWEST_CUDA)}"
    if version < OLDEST_CUDA:
        return failed(
            f"{said}, the hook knows {known}: limits are not kept on an older one",
            "apt-get install nvidia-driver-535   # or newer, in the way it came here; reboot",
        )
    if version > NEWEST_CUDA:
        return warning(
            f"{said}, the hook knows {known}: functions that are newer are not limited",
            "vgpu-agent version   # and look for a newer release of the agent",
        )
    return ok(f"{said}; the hook knows {known}")


def gpus(host: Host) -> Finding:
    """There are GPUs that answer."""
    answering = host.gpus
    if answering:
        return ok(", ".join(f"{gpu.index}: {gpu.name}" for gpu in answering))
    lost = _lost(host)
    if lost:
        return failed(f"none of {len(lost)} GPUs answers", RESET.format(lost[0]))
    return failed("NVML lists no GPU", "lspci -d 10de: && nvidia-smi -L")


def gpus_lost(host: Host) -> Finding:
    """No GPU has fallen off the bus."""
    lost = _lost(host)
    if lost:
        return failed(
            f"GPU {', '.join(map(str, lost))} does not answer, {len(host.gpus)} do",
            RESET.format(lost[0]),
        )
    return ok(f"all {len(host.gpus)} answer")


def _lost(host: Host) -> list[int]:
    """Indices of GPUs that NVML lists and that cannot be read."""
    with asking("the GPUs cannot be counted"):
        count = int(pynvml.nvmlDeviceGetCount())
    return sorted(set(range(count)) - {gpu.index for gpu in host.gpus})


def gpu_health(host: Host) -> Finding:
    """A probe of each, as the agent makes them."""
    ill = []
    for gpu in host.gpus:
        try:
            host.nvml.probe(gpu.uuid)
            ill += [f"GPU {gpu.index}: {sentence}" for sentence in _worn(gpu)]
        except NvmlError as error:
            ill.append(f"GPU {gpu.index}: {error}")
    if ill:
        return failed(
            "; ".join(ill), "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT; dmesg | grep -i xid"
        )
    return ok(f"{len(host.gpus)} of {len(host.gpus)} answered a probe")


def _worn(gpu: Gpu) -> list[str]:
    """What a GPU says that needs a reset or a new GPU; nothing where it cannot say."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        _, _, pending, failure = pynvml.nvmlDeviceGetRemappedRows(handle)
    except (pynvml.NVMLError, AttributeError, ValueError):
        return []
    said = ["rows wait to be remapped, by a reset"] if pending else []
    return said + (["rows cannot be remapped any more, the GPU is worn"] if failure else [])


def gpu_memory(host: Host) -> Finding:
    """The scheduler must be told how much memory there is."""
    # Of a GPU in MIG mode it is told to who may see all of it, and needed of none.
    unknown = [gpu for gpu in host.gpus if gpu.memory_mib is None and not gpu.mig_enabled]
    if unknown and not host.config.sharing.preconfigured_memory_mib:
        return failed(
            f"the driver does not say how much memory GPU {_numbers(unknown)} has, so it cannot "
            "be shared",
            "vgpu-agent run --preconfigured-device-memory MIB   # or `preconfiguredDeviceMemory`",
        )
    return ok(
        ", ".join(
            f"GPU {gpu.index}: "
            + (
                f"{gpu.memory_mib} MiB"
                + (f" ({gpu.reserved_mib} of them the driver's own)" if gpu.reserved_mib else "")
                if gpu.memory_mib is not None
                else "in MIG mode"
                if gpu.mig_enabled
                else "as configured"
            )
            for gpu in host.gpus
        )
    )


def compute_mode(host: Host) -> Finding:
    """One that lets a single process in shares no GPU. MPS wants it; a killed daemon leaves it."""
    ours = [gpu for gpu in host.gpus if not host.config.sharing.excludes(gpu)]
    modes = {gpu.index: _compute_mode(gpu) for gpu in ours}
    closed = [index for index, mode in modes.items() if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED]
    single = [
        gpu.index for gpu in (ours if _shared_in_time(host) else ()) if modes[gpu.index] in SINGLE
    ]
    if not closed and not single:
        return ok("no shared GPU is kept to one process")
    first, said = (closed or single)[0], []
    if closed:
        said.append(f"GPU {', '.join(map(str, closed))} lets no process in (PROHIBITED)")
    if single:
        numbers = ", ".join(map(str, single))
        said.append(f"GPU {numbers} lets one process in at a time (EXCLUSIVE_PROCESS)")
    return failed(
        f'{"; ".join(said)}: CUDA is "busy or unavailable" (46) to others, as in a second '
        "container",
        f"nvidia-smi -i {first} -c DEFAULT   # nvidia-smi -q -d COMPUTE shows it",
    )


def _compute_mode(gpu: Gpu) -> int:
    """0 where the driver has no such thing, as in a guest that has a part of a GPU."""
    with asking(f"the compute mode of GPU {gpu.index} cannot be read"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
        return if_offered(lambda: int(pynvml.nvmlDeviceGetComputeMode(handle))) or 0


def _shared_in_time(host: Host) -> bool:
    """Whether processes of several containers have a GPU in turn, without a daemon of MPS."""
    config = host.config
    if config.mode == "nvidia":
        return bool(config.time_slicing.resources)
    sizes = config.mode == "slices" and bool(config.slice_sizes)
    return config.sharing.mode != "mig" and (sizes or config.sharing.split_count > 1)


def mig(host: Host) -> Finding:
    """A GPU divided by MIG cannot be shared by the hook as well; one that shall be has to be."""
    if host.config.mode == "nvidia":
        return ok("mode nvidia gives MIG devices away as they are")
    if host.config.sharing.mode == "mig":
        return _dynamic_mig(host)
    shared = host.config.sharing.offered(GpuInventory(gpus=host.gpus))
    divided = [gpu for gpu in shared if gpu.mig_enabled]
    if not divided:
        return ok("no shared GPU is divided by MIG")
    return failed(
        f"GPU {_numbers(divided)} is divided by MIG, and no limit holds on its parts",
        f"nvidia-smi -i {divided[0].index} -mig 0   # or: vgpu-agent run --filter-device-indices "
        f"{divided[0].index}",
    )


def _dynamic_mig(host: Host) -> Finding:
    sharing = host.config.sharing
    if missing := _missing_right(host):
        return warning(
            f"this container has no {missing} (mig/config), and the driver divides no GPU for who "
            "has not: NVIDIA's toolkit 1.18.0 to 1.20.0 gives it to none in mode auto",
            "nvidia-ctk --version   # on the node: 1.20.1 or newer is wanted, then a new pod",
        )
    wanted = [gpu for gpu in host.gpus if not sharing.excludes(gpu)]
    if whole := [gpu for gpu in wanted if not gpu.mig_enabled]:
        return warning(
            f"GPU {_numbers(whole)} is not in MIG mode: the agent puts it there when nobody uses "
            "it, if the model has MIG; until then nothing of it is offered",
            f"nvidia-smi -i {whole[0].index} -mig 1   # see `nvidia-smi` for what uses it",
        )
    if none := [gpu for gpu in wanted if not sharing.mig_profiles(gpu)]:
        return failed(
            f"GPU {_numbers(none)} has none of the profiles that the settings allow",
            "vgpu-agent config   # mig-profile-allowlist; `nvidia-smi mig -lgip` lists what it has",
        )
    return ok(f"GPU {_numbers(wanted)} is in MIG mode")


def _missing_right(host: Host) -> str:
    """The device node of mig/config, if there should be one in this pod and is not."""
    minors = host.read_if_there(host.proc / "driver/nvidia-caps/mig-minors") or ""
    config = _CONFIG_MINOR.search(minors)
    if config is None or not host.in_pod:
        return ""
    node = Path(NODE_DIR) / f"nvidia-cap{config[1]}"
    there = host.device_number(host.dev / node.relative_to("/dev"))
    return "" if there else str(node)


def device_nodes(host: Host) -> Finding:
    """Containers get these files. Our own container has those that NVIDIA's runtime gave it."""
    if host.contained:
        return unseen()
    wanted = [f"nvidia{gpu.minor}" for gpu in host.gpus if gpu.minor is not None]
    wanted += ["nvidiactl", "nvidia-uvm"]
    missing = [name for name in wanted if host.device_number(host.dev / name) is None]
    if missing:
        return failed(
            f"{host.dev} has no device {', '.join(missing)}",
            "nvidia-modprobe -c 0 -u && systemctl enable --now nvidia-persistenced",
        )
    return ok(f"{', '.join(wanted)} in {host.dev}")


def device_links(host: Host) -> Finding:
    """Systemd finds devices by /dev/char; where a link is missing, a reload takes GPUs away."""
    if host.contained:
        return unseen()
    missing = []
    for name in [*(f"nvidia{gpu.minor}" for gpu in host.gpus), "nvidiactl", "nvidia-uvm"]:
        number = host.device_number(host.dev / name)
        if number and not _is_link(host, f"char/{number[0]}:{number[1]}"):
            missing.append(name)
    if missing and not host.config.pass_device_specs:
        return warning(
            f"{host.dev}/char has no link to {', '.join(missing)}: after `systemctl daemon-reload` "
            "running containers lose their GPU (`NVML: Unknown Error`)",
            "nvidia-ctk system create-dev-char-symlinks --create-all",
        )
    return ok(f"links in {host.dev}/char" if not missing else "device nodes are passed to kubelet")


def _is_link(host: Host, name: str) -> bool:
    try:
        return stat.S_ISLNK((host.dev / name).lstat().st_mode)
    except FileNotFoundError:
        return False


def known_to_kernel(host: Host) -> Finding:
    """Every GPU that the kernel module drives is one that NVML lists."""
    driven = {entry.name.lower() for entry in host.entries(host.proc / "driver/nvidia/gpus")}
    if not driven:
        return skipped(f"{host.proc}/driver/nvidia/gpus lists none")
    missed = sorted(driven - {sysfs_name(gpu.pci_bus_id) for gpu in host.gpus})
    if missed:
        return warning(
            f"the kernel drives {len(driven)} GPUs, but NVML does not list {', '.join(missed)}",
            f"nvidia-smi drain -q -p {missed[0]}; nvidia-smi -L",
        )
    return ok(f"the kernel and NVML both know {len(driven)}")


def _numbers(found: list[Gpu]) -> str:
    return ", ".join(str(gpu.index) for gpu in found)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


CHECKS = tuple(
    Check(name=name, question=question, look=look, needs=needs, hangs=REBOOT)
    for name, question, look, needs in (
        ("driver-loaded", "is the driver's kernel module loaded?", driver_loaded, ()),
        ("nvml", "does the driver's management library start?", nvml, ("driver-loaded",)),
        (
            "driver-match",
            "are kernel module and libraries of one version?",
            driver_match,
            ("nvml",),
        ),
        ("cuda-range", "does the hook know this driver?", cuda_range, ("driver-match",)),
        ("gpus", "are there GPUs that answer?", gpus, ("driver-match",)),
        ("gpus-lost", "do all of them answer?", gpus_lost, ("gpus",)),
        ("gpus-missed", "does NVML list what the kernel drives?", known_to_kernel, ("gpus",)),
        ("gpu-health", "does each GPU pass a probe?", gpu_health, ("gpus",)),
        ("gpu-memory", "is each GPU's memory known?", gpu_memory, ("gpus",)),
        ("compute-mode", "may several containers use a GPU at once?", compute_mode, ("gpus",)),
        ("mig", "are the GPUs divided by MIG that shall be, and no others?", mig, ("gpus",)),
        ("device-nodes", "are the device files there?", device_nodes, ("gpus",)),
        (
            "device-links",
            "do containers keep their GPU across a systemd reload?",
            device_links,
            ("device-nodes",),
        ),
    )
)
