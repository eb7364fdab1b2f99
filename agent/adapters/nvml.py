"""The NVIDIA driver through NVML: list GPUs, wait for events, probe; return codes -> typed errors.

One thread uses an `NvmlDriver` at a time (any call may hang; ctypes releases the interpreter lock
meanwhile), and nothing here holds a lock. Handles are looked up anew for each use: they may become
invalid when GPUs are discovered or removed.
Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from agent import logs
from agent.adapters.nvml_memory import reserved_mib
from agent.adapters.nvml_mig import NOT_FOR_US, if_told, read_devices, read_profiles
from agent.adapters.nvml_topology import bus_id, read_pairs, text
from agent.domain.gpu import Gpu, GpuEvent, MigDevice, MigProfile
from agent.domain.topology import GpuPair
from agent.errors import GpuLost, MigInUse, MigNoRoom, NvmlAbsent, NvmlError, NvmlStale

log = logs.get(__name__)
T = TypeVar("T")
Answered = Callable[[], None]  # see `agent.ports.Nvml`

UNKNOWN_CODE = 999
NO_INSTANCE = 0xFFFFFFFF  # in an event about a GPU that is not divided, or all of it
NAME_BYTES = 96
LONGEST_WAIT_S = 5.0
NVIDIA_PCI_VENDOR = "0x10de"

ABSENT = frozenset({pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
LOST = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_NOT_FOUND,
        28,  # GPU not found, in newer drivers; not every version of the binding has its name
    }
)
# The driver has no such thing for this GPU, or (older than the call) for any.
NOT_OFFERED = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
HINTS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 is not on the library path; install the driver, or run the agent with "
        "the nvidia runtime class"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the nvidia kernel module is not loaded; see dmesg",
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "run the agent as root, in a pod with the GPUs that NVIDIA's runtime gives it, and with "
        "CAP_SYS_ADMIN where it is to change how GPUs are divided"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the driver was upgraded under the running process; it has to be restarted"
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus; see dmesg for NVRM Xid messages",
    pynvml.NVML_ERROR_IN_USE: "a process is still on it",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "another instance lies there",
    pynvml.NVML_ERROR_RESET_REQUIRED: "it needs a reset (nvidia-smi --gpu-reset) or a reboot",
}
EVENT_KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: "xid",
    pynvml.nvmlEventTypeDoubleBitEccError: "ecc_double",
    pynvml.nvmlEventTypeSingleBitEccError: "ecc_single",
}
EVENT_MASK = sum(EVENT_KINDS)


def error_of(what: str, code: int) -> NvmlError:
    """The typed error for an NVML return code; `what` says what was asked."""
    try:
        text = str(pynvml.NVMLError(code))
    except Exception:  # noqa: BLE001 - asks the very library that may be missing
        text = f"NVML error {code}"
    hint = HINTS.get(code, "")
    message = f"{what}: {text}" + (f"; {hint}" if hint else "")
    if code in ABSENT:
        return NvmlAbsent(message, code=code)
    if code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return NvmlStale(message, code=code)
    if code in LOST:
        return GpuLost(message, code=code)
    if code == pynvml.NVML_ERROR_IN_USE:
        return MigInUse(message, code=code)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
        return MigNoRoom(message, code=code)
    return NvmlError(message, code=code)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Whatever NVML raises inside comes out as an `NvmlError` that says what was asked."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise error_of(what, int(getattr(error, "value", UNKNOWN_CODE))) from error
    except (AttributeError, OSError, UnicodeDecodeError) as error:  # a library that is none
        raise NvmlError(f"{what}: the NVML library does not work: {error}") from error


def if_offered(call: Callable[[], T]) -> T | None:
    """The answer, or None when this driver or GPU does not offer the call."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in NOT_OFFERED:
            return None
        raise


class NvmlDriver:
    """Implements `agent.ports.Nvml`."""

    def __init__(
        self,
        *,
        sysfs: Path = Path("/sys"),
        proc_gpus: Path = Path("/proc/driver/nvidia/gpus"),
        mig_minors: Path = Path("/proc/driver/nvidia-caps/mig-minors"),
    ) -> None:
        """Touches nothing yet.

        The paths are where the kernel lists PCI devices, its GPUs, and device nodes of MIG.
        """
        self._sysfs = sysfs
        self._proc_gpus = proc_gpus
        self._mig_minors = mig_minors
        self._profiles: dict[str, tuple[MigProfile, ...]] = {}  # by uuid; they never change
        self._reserved_mib: dict[str, int] = {}  # by uuid; asked once, so that slices stay as large
        self._events: Any = None  # the event set; None: none, or to be made anew
        self._watched: dict[int, str] = {}  # handle address in the event set -> uuid
        self._unwatchable: set[str] = set()
        self._pending: deque[GpuEvent] = deque()
        self._counted = 0  # GPUs in NVML's list, answering or not
        self._looked_again_for: frozenset[str] = frozenset()

    # --- the port --------------------------------------------------------------------------

    def open(self) -> None:
        """Load and initialise NVML. Raises NvmlAbsent, NvmlStale, NvmlError."""
        with asking("NVML does not start"):
            pynvml.nvmlInit()
        self._forget_events()

    def close(self) -> None:
        """Give NVML back; never raises."""
        self._free_events()
        self._forget_events()
        with suppress(pynvml.NVMLError, AttributeError, OSError):
            pynvml.nvmlShutdown()

    def gpus(self, answered: Answered = lambda: None) -> tuple[Gpu, ...]:
        """Every GPU that answers, by index; each is watched for events from now on.

        Raises NvmlError when the driver as a whole fails.
        """
        listed = self._list(answered)
        missed = self._missed_by_nvml(listed)
        if missed - self._looked_again_for:
            # This driver lists GPUs as they were when NVML was initialised.
            self.close()
            answered()
            self.open()
            listed = self._list(answered)
        self._looked_again_for = missed
        self._watch((gpu.uuid for gpu in listed), answered)
        return listed

    def wait_event(self, timeout_s: float, answered: Answered = lambda: None) -> GpuEvent | None:
        """The next event, or None after `timeout_s` (at most 5 s). Raises NvmlError.

        A GPU that is lost while it is watched is an event of kind "lost", once.
        """
        if self._pending:
            return self._pending.popleft()
        timeout_s = min(max(0.0, timeout_s), LONGEST_WAIT_S)
        if not self._watched:
            time.sleep(timeout_s)  # a driver without events, e.g. under WSL
            return None
        try:
            with asking("waiting for GPU events failed"):
                return self._next_event(timeout_s)
        except GpuLost:
            if not self._leave_lost_out(answered):
                raise  # every GPU answers and the wait fails all the same: start over, slowly
            return self._pending.popleft()

    def probe(self, uuid: str) -> None:
        """Ask one GPU for its handle, place and memory. Raises GpuLost, NvmlError."""
        with asking(f"GPU {uuid} does not answer"):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            if_offered(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
            if_told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), NOT_OFFERED | NOT_FOR_US)

    def pairs(self, answered: Answered = lambda: None) -> tuple[GpuPair, ...]:
        """Topology of every pair of GPUs that answer. Raises NvmlError."""
        with asking("the GPU topology cannot be read"):
            handles = {uuid: handle for _, uuid, handle in self._handles(answered)}
            return read_pairs(handles, answered)

    # --- inventory -------------------------------------------------------------------------

    def _list(self, answered: Answered) -> tuple[Gpu, ...]:
        return tuple(
            gpu
            for index, uuid, handle in self._handles(answered)
            if (gpu := self._described(index, uuid, handle)) is not None
        )

    def _handles(self, answered: Answered) -> Iterator[tuple[int, str, Any]]:
        """Index, uuid and handle of every GPU that answers."""
        with asking("the GPUs cannot be counted"):
            self._counted = int(pynvml.nvmlDeviceGetCount())
        failures = []
        answering = 0
        for index in range(self._counted):
            answered()
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found = (index, str(pynvml.nvmlDeviceGetUUID(handle)), handle)
            except pynvml.NVMLError as error:
                failures.append(error_of(f"GPU {index} does not answer", error.value))
                log.failing("gpu does not answer", about=str(index), error=failures[-1])
                continue
            log.recovered("gpu does not answer", about=str(index))
            answering += 1
            yield found
        general = [error for error in failures if not isinstance(error, GpuLost)]
        if not answering and general:
            raise general[0]  # not one GPU that is ill, but the driver

    def _described(self, index: int, uuid: str, handle: Any) -> Gpu | None:
        try:
            place = if_offered(lambda: bus_id(handle)) or ""
            mig_mode = if_offered(lambda: pynvml.nvmlDeviceGetMigMode(handle))
            minor = if_offered(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)))
            divided = bool(mig_mode and mig_mode[0])
            unsaid = NOT_OFFERED | NOT_FOR_US if divided else NOT_OFFERED
            memory = if_told(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle), unsaid)
            if memory is not None and uuid not in self._reserved_mib:
                self._reserved_mib[uuid] = reserved_mib(handle)
            devices, profiles = self._mig(uuid, handle, minor) if divided else ((), ())
            return Gpu(
                uuid=uuid,
                index=index,
                name=product_name(handle),
                memory_mib=None if memory is None else int(memory.total) >> 20 or None,
                reserved_mib=self._reserved_mib.get(uuid, 0),
                numa_node=self._numa_node(handle, place),
                pci_bus_id=place,
                minor=minor,
                mig_enabled=divided,
                mig_devices=devices,
                mig_profiles=profiles,
            )
        except pynvml.NVMLError as error:
            log.failing("gpu not readable", about=uuid, error=error_of("reading it", error.value))
            return None

    def _mig(
        self, uuid: str, handle: Any, minor: int | None
    ) -> tuple[tuple[MigDevice, ...], tuple[MigProfile, ...]]:
        """What a GPU in MIG mode is divided into, and could be; nothing when it cannot be read."""
        try:
            if not self._profiles.get(uuid):
                self._profiles[uuid] = read_profiles(handle)
            profiles = self._profiles[uuid]
            return read_devices(handle, minor, profiles, self._mig_minors), profiles
        except pynvml.NVMLError as error:
            why = error_of("its MIG devices cannot be read", error.value)
            log.failing("mig not readable", about=uuid, error=why)
            return (), ()

    def _numa_node(self, handle: Any, place: str) -> int | None:
        """The NUMA node of the CPUs next to the GPU.

        The kernel knows it by bus id. NVML's own call is the second choice: on machines where GPU
        memory is a NUMA node of its own it names that node, which has no CPUs.
        """
        device = self._sysfs / "bus" / "pci" / "devices" / sysfs_name(place)
        try:
            if (device / "vendor").read_text().strip() == NVIDIA_PCI_VENDOR:
                node = int((device / "numa_node").read_text())
                return node if node >= 0 else None
        except (OSError, ValueError):
            pass
        return if_offered(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle)))

    def _missed_by_nvml(self, listed: tuple[Gpu, ...]) -> frozenset[str]:
        """Bus ids of GPUs that the kernel module drives but NVML did not count."""
        try:
            driven = {entry.name.lower() for entry in self._proc_gpus.iterdir()}
        except OSError:
            return frozenset()
        if len(driven) <= self._counted:
            return frozenset()  # one that NVML counts but cannot reach is lost, not new
        return frozenset(driven - {sysfs_name(gpu.pci_bus_id) for gpu in listed})

    # --- events ----------------------------------------------------------------------------

    def _watch(self, uuids: Iterator[str], answered: Answered) -> None:
        """Have the event set report these GPUs too."""
        watched = set(self._watched.values())
        for uuid in uuids:
            if uuid in watched or uuid in self._unwatchable:
                continue
            answered()
            try:
                self._watch_one(uuid)
            except pynvml.NVMLError as error:
                reason = error_of("it cannot be watched", error.value)
                if error.value in NOT_OFFERED:
                    self._unwatchable.add(uuid)  # probes are all there is for this one
                log.failing("gpu not watched", about=uuid, error=reason)

    def _watch_one(self, uuid: str) -> None:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        types = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & EVENT_MASK
        if not types:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if self._events is None:
            self._events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(handle, types, self._events)
        self._watched[_address(handle)] = uuid

    def _next_event(self, timeout_s: float) -> GpuEvent | None:
        try:
            data = pynvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise
        kind = EVENT_KINDS.get(data.eventType, "other")
        uuid = self._uuid_of(data.device)
        instance = int(data.gpuInstanceId), int(data.computeInstanceId)
        return GpuEvent(
            uuid=uuid,
            kind=kind,
            xid=int(data.eventData) if kind == "xid" else 0,
            instance=None if NO_INSTANCE in instance else instance,
        )

    def _uuid_of(self, device: Any) -> str:
        """Empty when even that cannot be told: then the event may be about any GPU."""
        known = self._watched.get(_address(device))
        if known is not None:
            return known
        try:
            return str(pynvml.nvmlDeviceGetUUID(device))
        except pynvml.NVMLError:
            return ""

    def _leave_lost_out(self, answered: Answered) -> bool:
        """Go on with the GPUs that are still there: a lost one makes every wait fail at once.

        False when none of them is lost.
        """
        watched = sorted(set(self._watched.values()))
        with suppress(pynvml.NVMLError):  # what it still holds; then it says "lost" again
            while (event := self._next_event(0.0)) is not None:
                self._pending.append(event)
        self._free_events()
        self._watched = {}
        lost = []
        for uuid in watched:
            answered()
            if not self._answers(uuid):
                lost.append(uuid)
        self._pending.extend(GpuEvent(uuid=uuid, kind="lost") for uuid in lost)
        self._watch((uuid for uuid in watched if uuid not in lost), answered)
        return bool(lost)

    def _answers(self, uuid: str) -> bool:
        try:
            self.probe(uuid)
        except NvmlError:
            return False
        return True

    def _free_events(self) -> None:
        if self._events is not None:
            with suppress(pynvml.NVMLError, AttributeError, OSError):
                pynvml.nvmlEventSetFree(self._events)
        self._events = None

    def _forget_events(self) -> None:
        self._events = None
        self._watched = {}
        self._unwatchable = set()
        self._pending.clear()


def sysfs_name(place: str) -> str:
    """NVML's "00000000:17:00.0" as the kernel writes it, "0000:17:00.0"; "-" if it is none."""
    domain, _, rest = place.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest.lower()}"
    except ValueError:
        return "-"  # a name that no device has


def _address(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def product_name(handle: Any) -> str:
    """The product name; bytes that are not UTF-8 (seen under WSL) become replacement marks."""
    try:
        return text(pynvml.nvmlDeviceGetName(handle))
    except UnicodeDecodeError:
        buffer = ctypes.create_string_buffer(NAME_BYTES)
        code = pynvml.nvmlLib.nvmlDeviceGetName(handle, buffer, ctypes.c_uint(NAME_BYTES))
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code) from None
        return buffer.value.decode(errors="replace")
