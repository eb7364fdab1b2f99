"""Runs inside the programs under test: NVML by ctypes, as bare as it is in C, and a small nvidia-smi."""

import ctypes
from typing import Any

from cuda_calls import MIB

nvml = ctypes.CDLL("libnvidia-ml.so.1")
INSUFFICIENT_SIZE, NOT_FOUND, ALL_MODES = 7, 6, 3


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class InfoV1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


class Info(ctypes.Structure):
    _fields_ = [*InfoV1._fields_, ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class Detail(ctypes.Structure):
    _fields_ = [*Info._fields_, ("protected", ctypes.c_ulonglong)]


class DetailList(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint), ("mode", ctypes.c_uint), ("count", ctypes.c_uint),
        ("details", ctypes.POINTER(Detail)),
    ]  # fmt: skip


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class ProcessUtilization(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint), ("at_us", ctypes.c_ulonglong),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    ]  # fmt: skip


class ProcessUtilizationInfo(ctypes.Structure):
    _fields_ = [
        ("at_us", ctypes.c_ulonglong), ("pid", ctypes.c_uint),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder", "jpeg", "ofa")),
    ]  # fmt: skip


class ProcessesUtilization(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint), ("count", ctypes.c_uint), ("since_us", ctypes.c_ulonglong),
        ("infos", ctypes.POINTER(ProcessUtilizationInfo)),
    ]  # fmt: skip


class Sample(ctypes.Structure):
    _fields_ = [("at_us", ctypes.c_ulonglong), ("value", ctypes.c_uint), ("pad", ctypes.c_uint)]


def handle(number: int = 0) -> ctypes.c_void_p:
    """The device, after nvmlInit."""
    found = ctypes.c_void_p()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(found)) == 0
    return found


def mig(position: int, number: int = 0) -> ctypes.c_void_p:
    """A MIG device of a GPU."""
    found = ctypes.c_void_p()
    gpu = handle(number)
    assert nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, position, ctypes.byref(found)) == 0
    return found


def memory(device: Any, version: int = 1) -> list[int]:
    """Total, used and free in MiB."""
    if version == 1:
        said: Any = Memory()
        assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(said)) == 0
    else:
        said = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        assert nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(said)) == 0
        assert said.reserved == 0
    return [said.total // MIB, said.used // MIB, said.free // MIB]


def processes(device: Any, function: str, entry: Any = Info, room: int | None = None) -> Any:
    """[pid, MiB] of a list, asked for as programs do: first for its length. A number is an error."""
    call = getattr(nvml, f"nvmlDeviceGet{function}")
    count = ctypes.c_uint(0)
    result = call(device, ctypes.byref(count), None)
    if result not in {0, INSUFFICIENT_SIZE}:
        return result
    assert (result == INSUFFICIENT_SIZE) == (count.value > 0)
    count.value = count.value if room is None else room
    infos = (entry * (count.value + 1))()
    infos[count.value].pid = 0xFFFFFFFF  # nobody writes behind the end
    result = call(device, ctypes.byref(count), infos)
    told = 0 if result else count.value
    assert infos[told if room is None else room].pid == 0xFFFFFFFF
    return result or [[infos[i].pid, infos[i].used // MIB] for i in range(count.value)]


def instances(device: Any) -> list[list[int]]:
    """[GPU instance, compute instance] of each process that computes."""
    count, infos = ctypes.c_uint(16), (Info * 16)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), infos) == 0
    return [[info.gi, info.ci] for info in infos[: count.value]]


def details(device: Any, mode: int = 0, version: int | None = None) -> Any:
    """[pid, MiB] of the newest kind of list."""
    asked = DetailList(mode=mode, version=ctypes.sizeof(DetailList) | 1 << 24)
    if version is not None:
        asked.version = version
    call = nvml.nvmlDeviceGetRunningProcessDetailList
    result = call(device, ctypes.byref(asked))
    if result not in {0, INSUFFICIENT_SIZE}:
        return result
    infos = (Detail * max(asked.count, 1))()
    asked.details = infos
    result = call(device, ctypes.byref(asked))
    return result or [[infos[i].pid, infos[i].used // MIB] for i in range(asked.count)]


def utilization(device: Any) -> list[int]:
    """Of the GPU and of its memory, in percent."""
    said = Utilization()
    assert nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(said)) == 0
    return [said.gpu, said.memory]


def sampled(device: Any, kind: int) -> Any:
    """The values of the driver's samples."""
    value_type, count = ctypes.c_int(), ctypes.c_uint()
    call = nvml.nvmlDeviceGetSamples
    since = ctypes.c_ulonglong(0)
    result = call(device, kind, since, ctypes.byref(value_type), ctypes.byref(count), None)
    if result:
        return result
    samples = (Sample * count.value)()
    result = call(device, kind, since, ctypes.byref(value_type), ctypes.byref(count), samples)
    return result or [sample.value for sample in samples[: count.value]]


def by_process(device: Any, room: int = 16) -> Any:
    """[pid, percent] of each process that works."""
    count, samples = ctypes.c_uint(room), (ProcessUtilization * max(room, 1))()
    result = nvml.nvmlDeviceGetProcessUtilization(
        device, samples if room else None, ctypes.byref(count), ctypes.c_ulonglong(0)
    )
    return [result, count.value] if result else [[s.pid, s.sm] for s in samples[: count.value]]


def by_process_newer(device: Any, room: int = 16) -> Any:
    """The same from the newer function."""
    infos = (ProcessUtilizationInfo * max(room, 1))()
    asked = ProcessesUtilization(
        version=ctypes.sizeof(ProcessesUtilization) | 1 << 24, count=room, infos=infos
    )
    result = nvml.nvmlDeviceGetProcessesUtilizationInfo(device, ctypes.byref(asked))
    return [result, asked.count] if result else [[i.pid, i.sm] for i in infos[: asked.count]]


def smi() -> dict[str, Any]:
    """What nvidia-smi prints of the first GPU, by the calls that it makes."""
    device = handle()
    total, used, free = memory(device, 2)
    listed = processes(device, "ComputeRunningProcesses_v3")
    return {
        "v1": memory(device), "v2": [total, used, free], "processes": listed,
        "sum": sum(mib for _, mib in listed), "name": process_names(listed),
    }  # fmt: skip


def process_names(listed: list[list[int]]) -> list[bool]:
    """Whether the driver knows the names of these processes."""
    name = ctypes.create_string_buffer(256)
    return [nvml.nvmlSystemGetProcessName(pid, name, 256) == 0 for pid, _ in listed]
