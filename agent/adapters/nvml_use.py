"""What the driver tells of the use of its GPUs: implements `agent.ports.GpuMeter`.

NVML is held only while it is looked at: a driver that lists GPUs as they were at its start lists
new ones once nobody holds it, which is how the health service finds them.
Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import pynvml

from agent import logs
from agent.adapters.nvml import LOST, NOT_OFFERED, asking, error_of, product_name
from agent.adapters.nvml_memory import OLDER, memory_as_told
from agent.domain.accounting import GpuProcess, GpuUse
from agent.errors import GpuLost, NvmlError

log = logs.get(__name__)
T = TypeVar("T")

PERCENT = 100
CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
LISTS_GROW = 3  # tries to read a list that grows meanwhile
# The third version of the process list has longer entries there than its number says.
ODD_LISTS_FROM, ODD_LISTS_UNTIL = (535, 43), (535, 98)
Instance = tuple[int, int, int]  # pid, and the part of the GPU when it is cut by MIG


class NvmlMeter:
    """Implements `agent.ports.GpuMeter`."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        """Touches nothing yet. `clock` gives unix time, which the driver stamps samples with."""
        self._clock = clock
        self._sampled_us: dict[str, int] = {}  # uuid -> the newest sample seen of it

    def look(self) -> tuple[GpuUse, ...]:
        """Every GPU that answers, by index. Raises NvmlAbsent, NvmlError."""
        with held():
            odd_lists = has_odd_lists()
            with asking("the GPUs cannot be counted"):
                count = int(pynvml.nvmlDeviceGetCount())
            seen: list[GpuUse] = []
            failures: list[NvmlError] = []
            for index in range(count):
                try:
                    with asking(f"GPU {index} does not answer"):
                        seen.append(self._gpu(index, odd_lists=odd_lists))
                except NvmlError as error:
                    failures.append(error)
                    log.failing("gpu use not read", about=str(index), error=error)
                else:
                    log.recovered("gpu use not read", about=str(index))
        general = [error for error in failures if not isinstance(error, GpuLost)]
        if general and not seen:
            raise general[0]  # not one GPU that is ill, but the driver
        self._sampled_us = {gpu.uuid: self._sampled_us.get(gpu.uuid, 0) for gpu in seen}
        return tuple(seen)

    def close(self) -> None:
        """Nothing is held between two looks."""

    def _gpu(self, index: int, *, odd_lists: bool) -> GpuUse:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        ask = _Asking(uuid)
        memory = ask("memory", lambda: _memory(handle))
        rates = ask("utilisation", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        mig = ask("MIG mode", lambda: pynvml.nvmlDeviceGetMigMode(handle))
        sensor = pynvml.NVML_TEMPERATURE_GPU
        milliwatts = ask("power", lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)))
        return GpuUse(
            uuid=uuid,
            index=index,
            name=ask("name", lambda: product_name(handle)) or "",
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            utilisation_percent=None if rates is None else min(int(rates.gpu), PERCENT),
            memory_utilisation_percent=None if rates is None else min(int(rates.memory), PERCENT),
            temperature_celsius=ask(
                "temperature", lambda: int(pynvml.nvmlDeviceGetTemperature(handle, sensor))
            ),
            power_watts=None if milliwatts is None else milliwatts / 1000,
            ecc_corrected=ask("corrected ECC errors", lambda: _ecc(handle, CORRECTED)),
            ecc_uncorrected=ask("uncorrected ECC errors", lambda: _ecc(handle, UNCORRECTED)),
            mig_enabled=bool(mig and mig[0]),
            processes=self._processes(handle, uuid, ask, odd_lists=odd_lists),
        )

    def _processes(
        self, handle: Any, uuid: str, ask: "_Asking", *, odd_lists: bool
    ) -> tuple[GpuProcess, ...] | None:
        """By pid; None: the driver does not tell of programs that compute."""
        compute = ask("processes", lambda: listed_by(COMPUTE, handle, odd_lists=odd_lists))
        if compute is None:
            return None
        graphics = ask("graphics", lambda: listed_by(GRAPHICS, handle, odd_lists=odd_lists))
        used = by_pid([*compute, *(graphics or ())])
        busy = ask("shares", lambda: self._sm_percent(handle, uuid))
        return tuple(
            GpuProcess(
                pid=pid,
                used_bytes=used[pid],
                sm_percent=None if busy is None else busy.get(pid, 0),
            )
            for pid in sorted(used)
        )

    def _sm_percent(self, handle: Any, uuid: str) -> dict[int, int]:
        """Per pid, the share of GPU time since the last look; who is not in it did nothing.

        Raises pynvml.NVMLError.
        """
        # After the clock was set back, samples of before would be the newest for long.
        since_us = min(self._sampled_us.get(uuid, 0), int(self._clock() * 1e6))
        try:
            samples = _grown(lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:  # of samples, not of a GPU
                return {}
            raise
        newest: dict[int, Any] = {}
        for sample in samples:
            known = newest.get(sample.pid)
            if sample.smUtil <= PERCENT and (known is None or known.timeStamp <= sample.timeStamp):
                newest[int(sample.pid)] = sample
        self._sampled_us[uuid] = max((int(s.timeStamp) for s in newest.values()), default=since_us)
        return {pid: int(sample.smUtil) for pid, sample in newest.items()}


class _Asking:
    """Asks one GPU; what it does not tell is None, but a GPU that is lost is an error."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    def __call__(self, what: str, call: Callable[[], T]) -> T | None:
        """The answer. Raises pynvml.NVMLError when the GPU is gone."""
        about = f"{what} of {self._uuid}"
        try:
            answer = call()
        except pynvml.NVMLError as error:
            if error.value in LOST:
                raise
            if error.value not in NOT_OFFERED:
                reason = error_of("the driver does not tell it", error.value)
                log.failing("gpu figure not read", about=about, error=reason)
            return None
        log.recovered("gpu figure not read", about=about)
        return answer


@contextmanager
def held() -> Iterator[None]:
    """NVML counts who holds it, so others that do are not disturbed. Raises NvmlError."""
    with asking("NVML does not start"):
        pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError, AttributeError, OSError):
            pynvml.nvmlShutdown()


def has_odd_lists() -> bool:
    """Whether this driver's newest process lists are not what they say they are."""
    try:
        version = str(pynvml.nvmlSystemGetDriverVersion()).split(".")
        return ODD_LISTS_FROM <= (int(version[0]), int(version[1])) < ODD_LISTS_UNTIL
    except (pynvml.NVMLError, ValueError, IndexError):
        return False


def _ecc(handle: Any, kind: int) -> int:
    """Errors that the GPU itself counts: a driver that is loaded anew does not begin at 0."""
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_AGGREGATE_ECC))


def _memory(handle: Any) -> Any | None:
    """None for one of 0 bytes: drivers of unified memory answer so, or not at all."""
    memory = memory_as_told(handle)
    return memory if int(memory.total) else None


COMPUTE = (
    pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
)
GRAPHICS = (
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
)


def listed_by(
    versions: tuple[Callable[[Any], list[Any]], ...], handle: Any, *, odd_lists: bool
) -> list[tuple[Instance, int | None]]:
    """Who is listed, with bytes; None: the driver does not tell them. Raises pynvml.NVMLError."""
    newest, older = versions
    try:
        found = _grown(lambda: (older if odd_lists else newest)(handle))
    except pynvml.NVMLError as error:
        if odd_lists or error.value not in OLDER:
            raise
        found = _grown(lambda: older(handle))
    return [
        (
            (int(one.pid), int(one.gpuInstanceId), int(one.computeInstanceId)),
            None if one.usedGpuMemory is None else int(one.usedGpuMemory),
        )
        for one in found
    ]


def by_pid(listed: Iterable[tuple[Instance, int | None]]) -> dict[int, int | None]:
    """Bytes per pid: the parts of a GPU add up; who computes and draws is listed twice."""
    parts: dict[Instance, int | None] = {}
    for instance, used in listed:
        known = parts.get(instance)
        parts[instance] = used if known is None else max(known, used or 0)
    total: dict[int, int | None] = {}
    for (pid, _, _), used in parts.items():
        known = total.get(pid)
        total[pid] = known if used is None else (known or 0) + used
    return total


def _grown(read: Callable[[], T]) -> T:
    """Read a list whose length is asked first; it may be longer by then."""
    for _ in range(LISTS_GROW - 1):
        try:
            return read()
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                raise
    return read()
