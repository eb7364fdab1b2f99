"""A simulated NVIDIA driver: the configuration that its two C libraries play.

`libnvidia-ml.so.1` and `libcuda.so.1` (hook/sim) are loaded by pynvml and by CUDA programs as the
real ones are; they do what the file written here says, at once. Its grammar is described in
docs/simulated-driver.md.

GPUs of models that have MIG (A30, A100, H100, H200) are divided through NVML, as the real ones are.

It does not imitate: device code (a kernel only takes time), bandwidth and timing of real hardware,
MPS, graphics, vGPU licences, and the dozens of NVML calls that nobody here needs;
those are missing symbols, as on an old driver.
"""

import os
import struct
import threading
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.bundle import hook_dir

CONFIG_FILE = "node.conf"
MISSING = "the simulated driver is not built: {path} is missing; run `python3 build.py hook` first"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMig:
    """One MIG device of a GPU."""

    position: int
    uuid: str
    gpu_instance: int
    compute_instance: int = 0
    memory_mib: int = 4864


@dataclass(frozen=True, slots=True, kw_only=True)
class SimGpu:
    """One simulated GPU. None for memory or NUMA node: the driver answers "not supported"."""

    uuid: str
    name: str = "NVIDIA A40"
    memory_mib: int | None = 46068
    reserved_mib: int = 0
    compute_mode: int = 0  # NVML's number
    numa_node: int | None = 0
    bus_id: str = ""  # empty: made from the number
    minor: int | None = None  # None: the number
    mig: bool = False
    compute_capability: str = "8.6"
    events: str = "xid,ecc"  # what the driver can report: "xid", "ecc", "xid,ecc", "none"
    gpu_percent: int = 0
    migs: tuple[SimMig, ...] = ()
    lost: bool = False
    context_mib: int = 0  # memory that each context takes
    context_ms: int = 0  # real time that the first context of a process takes
    module_mib: int = 0  # and each module
    pool_step_mib: int = 32  # what memory pools grow by
    page_mib: int = 0  # that memory by address takes whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """Everything the configuration says, as values."""

    driver: str = "ok"
    driver_version: str = "570.86.15"
    cuda_version: int = 12080
    hanging: bool = False
    fixed_enumeration: bool = False
    hidden_pids: bool = False
    kernel_us: int = 0
    # us=... by name and GPU, None: any
    kernels: Mapping[tuple[str, int | None], str] = field(default_factory=dict)
    execution: Mapping[str, int | str] = field(default_factory=dict)  # slice_us and the like
    absent: tuple[str, ...] = ()
    gpus: Mapping[int, SimGpu] = field(default_factory=dict)
    failures: Mapping[tuple[str, int | None], int] = field(default_factory=dict)
    processes: Mapping[int, str] = field(default_factory=dict)  # by pid
    pairs: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


STATE_GPUS, STATE_UUID_BYTES, STATE_UUIDS_AT = 64, 96, 8  # layout of the state, hook/sim/memory.c
LANE, LANES_AT, LANES = struct.Struct("<III4x8xQ24x"), 32, 1024  # hook/sim/execution_layout.h
GPUS_AT, GPU_ROW_BYTES = LANES_AT + LANES * LANE.size, 640
GPU_ROWS_END = GPUS_AT + STATE_GPUS * GPU_ROW_BYTES
MAX_EVENTS = 200  # below the driver's own limit; the oldest are forgotten


def library_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the built simulated driver lies: VGPU_SIM_LIBRARY_DIR, else with the program."""
    given = environ.get("VGPU_SIM_LIBRARY_DIR")
    return Path(given) if given else hook_dir() / "sim"


class SimDriver:
    """Writes the configuration of one simulated node, atomically, at every change. Thread safe.

    GPUs are called by their number, which is the order NVML lists them in.
    """

    def __init__(self, directory: Path, *, libraries: Path | None = None) -> None:
        """Start with a driver that has no GPU. `directory` must exist; it also gets the state."""
        self.config_path = directory / CONFIG_FILE
        self.libraries = libraries or library_dir()
        if not (self.libraries / "libnvidia-ml.so.1").exists():
            raise FileNotFoundError(MISSING.format(path=self.libraries / "libnvidia-ml.so.1"))
        self._lock = threading.Lock()
        self._node = _Node()
        self._last_event = 0
        self._write()

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to find this driver."""
        return {"LD_LIBRARY_PATH": str(self.libraries), "VGPU_SIM_DRIVER": str(self.config_path)}

    # --- GPUs ----------------------------------------------------------------------------------

    def add_gpu(self, number: int | None = None, gpu: SimGpu | None = None) -> SimGpu:
        """Put a GPU in (by default the next number, an A40 with a made-up uuid); gives it."""
        with self._lock:
            free = max(self._node.gpus, default=-1) + 1
            number = free if number is None else number
            gpu = gpu or SimGpu(uuid=made_up_uuid(number))
            self._change(gpus={**self._node.gpus, number: gpu})
            return gpu

    def remove_gpu(self, number: int) -> None:
        """Take a GPU out as if it had never been there."""
        with self._lock:
            self._change(gpus={n: g for n, g in self._node.gpus.items() if n != number})

    def change_gpu(self, number: int, gpu: SimGpu) -> None:
        """Replace what is known about a GPU."""
        with self._lock:
            self._change(gpus={**self._node.gpus, number: gpu})

    def lost(self, number: int, lost: bool = True) -> None:
        """Let a GPU fall off the bus, or come back."""
        with self._lock:
            gpu = replace(self._node.gpus[number], lost=lost)
            self._change(gpus={**self._node.gpus, number: gpu})

    # --- what happens to them ------------------------------------------------------------------

    def xid(self, number: int, code: int, *, instance: tuple[int, int] | None = None) -> int:
        """Report an XID on a GPU; gives the number of the event.

        `instance`: GPU and compute instance of the MIG device that it is about.
        """
        where = f" gi={instance[0]} ci={instance[1]}" if instance else ""
        return self._event(f"xid {{}} gpu={number} code={code}{where}")

    def ecc(self, number: int, kind: str = "double") -> int:
        """Report an ECC error ("single" or "double") on a GPU; gives the number of the event."""
        return self._event(f"ecc {{}} gpu={number} kind={kind}")

    def _event(self, line: str) -> int:
        with self._lock:
            self._last_event += 1
            events = (*self._node.events, line.format(self._last_event))
            self._change(events=events[-MAX_EVENTS:])
            return self._last_event

    def hang(self, hanging: bool = True) -> None:
        """Let every NVML call wait until this is called with False."""
        with self._lock:
            self._change(hanging=hanging)

    def driver(self, state: str) -> None:
        """Make the driver as a whole "ok", "absent" or "mismatch"."""
        with self._lock:
            self._change(driver=state)

    def fixed_enumeration(self, fixed: bool = True) -> None:
        """Let NVML list GPUs as they were at nvmlInit, until it is initialised again."""
        with self._lock:
            self._change(fixed_enumeration=fixed)

    def hidden_pids(self, hidden: bool = True) -> None:
        """Let NVML list programs by pids of another namespace, as in most containers."""
        with self._lock:
            self._change(hidden_pids=hidden)

    def versions(self, *, driver: str = "570.86.15", cuda: int = 12080) -> None:
        """Change the versions that the driver reports."""
        with self._lock:
            self._change(driver_version=driver, cuda_version=cuda)

    def fail(self, call: str, code: int, number: int | None = None) -> None:
        """Let an NVML or CUDA function fail with this code, on one GPU or (None) everywhere."""
        with self._lock:
            self._change(failures={**self._node.failures, (call, number): code})

    def heal(self) -> None:
        """Undo every `fail`."""
        with self._lock:
            self._change(failures={})

    def process(
        self,
        number: int,
        pid: int,
        memory_mib: int,
        *,
        kind: str = "compute",
        sm_percent: int = 0,
        instance: tuple[int, int] | None = None,
        from_mib: int = 0,
    ) -> None:
        """List a process of the node's other world; real tenants appear by themselves.

        `instance`: GPU and compute instance of the MIG device that it uses.
        `from_mib`: it is there only while real tenants hold as much of the GPU.
        """
        line = (
            f"process gpu={number} pid={pid} memory_mib={memory_mib}"
            f" type={kind} sm_percent={sm_percent} from_mib={from_mib}"
            + (f" gi={instance[0]} ci={instance[1]}" if instance else "")
        )
        with self._lock:
            self._change(processes={**self._node.processes, pid: line})

    def end_process(self, pid: int) -> None:
        """Take a process off the list again."""
        with self._lock:
            self._change(processes={p: s for p, s in self._node.processes.items() if p != pid})

    def nvlink(self, first: int, second: int | str, links: int, back: int | None = None) -> None:
        """Join two GPUs (or one and "switch") by NVLinks; `back`: what the other end claims."""
        other = "" if back is None else f" back={back}"
        with self._lock:
            self._change(pairs=(*self._node.pairs, f"nvlink {first} {second} links={links}{other}"))

    def topology(self, first: int, second: int, level: str) -> None:
        """Say how near two GPUs are: internal, single, multiple, hostbridge, node or system."""
        with self._lock:
            self._change(pairs=(*self._node.pairs, f"topology {first} {second} level={level}"))

    def kernel_us(self, kernel_us: int) -> None:
        """Let every kernel take this long that has no time of its own."""
        with self._lock:
            self._change(kernel_us=kernel_us)

    def kernel(
        self,
        name: str,
        us: int,
        up_to_us: int | None = None,
        one_in: int | None = None,
        gpu: int | None = None,
        after: int | None = None,
        meets: int | None = None,
        alike: int | None = None,
    ) -> None:
        """Let kernels of this name take `us`, or anything up to `up_to_us`, log-uniformly.

        With `one_in`, that many of them take `up_to_us` once, by chance, and `us` otherwise. With
        `after`, so many of a process take `us`, and all later ones `up_to_us`. With `alike`, so
        many in a row of a process take `us`, or `up_to_us`, by chance. With `gpu`, on the
        GPU of this number; what is said of it first goes before what is said of all.
        With `meets`, its runs on so many GPUs wait for each other there, and then take so long.
        """
        text = str(us) if up_to_us is None else f"{us}..{up_to_us}"
        text += "" if one_in is None else f" one_in={one_in}"
        text += "" if gpu is None else f" gpu={gpu}"
        text += "" if after is None else f" after={after}"
        text += "" if alike is None else f" alike={alike}"
        text += "" if meets is None else f" meets={meets}"
        with self._lock:
            self._change(kernels={**self._node.kernels, (name, gpu): text})

    def execution(self, **values: int | str) -> None:
        """Set `slice_us`, `launch_us`, `queue_depth`, `connections` or `clock` ("real", "virtual").

        Or `event_ns`: how long an event holds up its stream.
        Or `event_step_ns`: in which steps its time is told.
        Or `drift_ppm`: by how much the GPU's clock is fast.
        Or `green_contexts` ("same", "apart": CUcontexts of green ones are pointers of their own).
        Clock, slice and connections are those of the first program that uses a GPU of the node.
        """
        with self._lock:
            self._change(execution={**self._node.execution, **values})

    def absent(self, *calls: str) -> None:
        """Let cuGetProcAddress not know these functions (by symbol), as an old driver does."""
        with self._lock:
            self._change(absent=(*self._node.absent, *calls))

    def gpu_time_ns(self, uuid: str) -> dict[int, int]:
        """How long this GPU really worked for whom, by pid, the dead included.

        As of the last time that a program of the node worked with a GPU or waited for one.
        """
        path = self.config_path.with_name(f"{CONFIG_FILE}.gpu")
        raw = path.read_bytes()[:GPU_ROWS_END] if path.exists() else b""
        places = (raw[at : at + STATE_UUID_BYTES] for at in range(GPUS_AT, len(raw), GPU_ROW_BYTES))
        place = next(
            (i for i, name in enumerate(places) if name.rstrip(b"\0") == uuid.encode()), None
        )
        times: dict[int, int] = {}
        for pid, gpu, state, busy_ns in LANE.iter_unpack(raw[LANES_AT:GPUS_AT]):
            if state and gpu == place:
                times[pid] = times.get(pid, 0) + busy_ns
        return times

    def peak_mib(self, uuid: str) -> int:
        """The most memory of this GPU that programs ever held at once, as the driver counts."""
        raw = self.config_path.with_name(f"{CONFIG_FILE}.state").read_bytes()
        for place in range(STATE_GPUS):
            at = STATE_UUIDS_AT + place * STATE_UUID_BYTES
            if raw[at : at + STATE_UUID_BYTES].rstrip(b"\0").decode() == uuid:
                peaks_at = STATE_UUIDS_AT + STATE_GPUS * STATE_UUID_BYTES
                return int.from_bytes(raw[peaks_at + 8 * place :][:8], "little") >> 20
        return 0

    # --- the file ------------------------------------------------------------------------------

    def _change(self, **changes: object) -> None:
        """Called with the lock held."""
        self._node = replace(self._node, **changes)  # type: ignore[arg-type]
        self._write()

    def _write(self) -> None:
        fresh = self.config_path.with_name(f".{CONFIG_FILE}.new")
        fresh.write_text(render(self._node), encoding="utf-8")
        fresh.replace(self.config_path)


def made_up_uuid(number: int) -> str:
    """A GPU uuid that is the same for the same number on every run."""
    return f"GPU-{uuids.uuid5(uuids.NAMESPACE_OID, f'simulated gpu {number}')}"


def render(node: _Node) -> str:
    """The configuration file that says all this."""
    lines = [
        f"driver_version {node.driver_version}",
        f"cuda_version {node.cuda_version}",
        f"driver {node.driver}",
        f"kernel_us {node.kernel_us}",
        f"enumeration {'fixed' if node.fixed_enumeration else 'live'}",
        *(["hang"] if node.hanging else []),
        *(f"kernel {name} us={us}" for (name, _), us in node.kernels.items()),
        *(f"{word} {value}" for word, value in node.execution.items()),
        *(f"absent call={call}" for call in node.absent),
        *(["pids hidden"] if node.hidden_pids else []),
    ]
    for number, gpu in sorted(node.gpus.items()):
        lines += _gpu_lines(number, gpu)
    for (call, target), code in node.failures.items():
        lines.append(f"fail call={call} code={code}" + ("" if target is None else f" gpu={target}"))
    present = [
        line
        for line in (*node.processes.values(), *node.pairs)
        if _numbers_in(line) <= node.gpus.keys()
    ]
    return "\n".join([*lines, *present, *node.events, ""])


def _numbers_in(line: str) -> set[int]:
    """Numbers of the GPUs that a process, nvlink or topology line speaks of."""
    words = line.split()
    if words[0] == "process":
        return {int(words[1].removeprefix("gpu="))}
    return {int(word) for word in words[1:3] if word != "switch"}


def _gpu_lines(number: int, gpu: SimGpu) -> list[str]:
    words = [
        f"gpu {number} uuid={gpu.uuid} name={_quoted(gpu.name)}",
        f"memory_mib={'unsupported' if gpu.memory_mib is None else gpu.memory_mib}",
        f"reserved_mib={gpu.reserved_mib} compute_mode={gpu.compute_mode}",
        f"numa={'unsupported' if gpu.numa_node is None else gpu.numa_node}",
        f"minor={number if gpu.minor is None else gpu.minor}",
        f"mig={'on' if gpu.mig else 'off'} cc={gpu.compute_capability} events={gpu.events}",
        f"gpu_percent={gpu.gpu_percent}",
        f"context_mib={gpu.context_mib} context_ms={gpu.context_ms} module_mib={gpu.module_mib}",
        f"pool_step_mib={gpu.pool_step_mib} page_mib={gpu.page_mib}",
        *([f"bus={gpu.bus_id}"] if gpu.bus_id else []),
    ]
    migs = [
        f"mig {number} {mig.position} uuid={mig.uuid} gi={mig.gpu_instance}"
        f" ci={mig.compute_instance} memory_mib={mig.memory_mib}"
        for mig in gpu.migs
    ]
    return [" ".join(words), *migs, *([f"lost gpu={number}"] if gpu.lost else [])]


def _quoted(text: str) -> str:
    """Quote for the configuration; surrogate escapes stand for bytes that are not UTF-8."""
    raw = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(_character(byte) for byte in raw) + '"'


def _character(byte: int) -> str:
    plain = 0x20 <= byte < 0x7F and byte not in b'"\\#'  # noqa: PLR2004 - printable ASCII
    return chr(byte) if plain else f"\\x{byte:02x}"
