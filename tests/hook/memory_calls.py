"""Runs inside the programs under test: the driver's less common ways to memory, and both counts of it."""

import contextlib
import ctypes
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cuda_calls import MIB, cuda

# --- who holds what -------------------------------------------------------------------------------


def charged_mib() -> float:
    """What the hook says is taken of the current device."""
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cuMemGetInfo_v2(ctypes.byref(room), ctypes.byref(total)) == 0
    return (total.value - room.value) / MIB


def ledger_mib() -> float:
    """What the usage region says that the container is charged on its first GPU (region_layout.h)."""
    ledger_at, bytes_bits = 2031616 + 64, 48
    with Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).open("rb") as file:
        (word,) = struct.unpack("<Q", os.pread(file.fileno(), 8, ledger_at))
    return (int(word) & ((1 << bytes_bits) - 1)) / MIB


UUIDS_AT, GPUS, UUID_BYTES, ROW = 8, 64, 96, struct.Struct("<I20xI4xQ")
ROWS_AT = UUIDS_AT + GPUS * UUID_BYTES + GPUS * 8


def held_mib(gpu: int = 0) -> float:
    """What the simulated driver says that all programs hold of a GPU (hook/sim/memory.c)."""
    raw = Path(os.environ["VGPU_SIM_DRIVER"] + ".state").read_bytes()
    rows = struct.unpack_from("<I", raw, 4)[0]
    found = (ROW.unpack_from(raw, ROWS_AT + ROW.size * i) for i in range(rows))
    return sum(held for pid, at, held in found if pid and at == gpu) / MIB


def both() -> list[float]:
    """Both counts; they must agree whenever nothing is under way."""
    return [charged_mib(), held_mib()]


def _copy_of_driver() -> Path:
    copy = Path(os.environ["VGPU_SIM_DRIVER"]).with_name("libother.so")
    driver = Path(os.environ["LD_LIBRARY_PATH"]) / "libcuda.so.1"
    copy.write_bytes(driver.read_bytes().replace(b"libcuda.so.1\0", b"libother.so1\0"))
    return copy


def unseen_driver() -> ctypes.CDLL:
    """The same driver as another library, which the hook does not know: with a context, current."""
    other, context = ctypes.CDLL(str(_copy_of_driver())), ctypes.c_void_p()
    assert other.cuInit(0) == 0
    assert other.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert other.cuCtxSetCurrent(context) == 0
    return other


def unseen(function: str, *types: Any) -> Any:
    """A function of the driver itself, called without the hook's knowledge."""
    other = ctypes.CDLL(str(_copy_of_driver()))
    starts: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        starts.setdefault(Path(line.split()[-1]).name, int(line.split("-")[0], 16))
    driver = next(at for name, at in starts.items() if name.startswith("libcuda.so"))
    address = ctypes.cast(getattr(other, function), ctypes.c_void_p).value or 0
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(address - starts["libother.so"] + driver)


@contextlib.contextmanager
def told(line: str) -> Iterator[None]:
    """The driver does so meanwhile."""
    config = Path(os.environ["VGPU_SIM_DRIVER"])
    before = config.read_text()
    _configure(config, f"{before}{line}\n")
    yield
    _configure(config, before)


def refused(call: str, code: int = 999) -> AbstractContextManager[None]:
    """The driver refuses this call meanwhile."""
    return told(f"fail call={call} code={code}")


def held(call: str) -> AbstractContextManager[None]:
    """Who calls this waits meanwhile, before it does anything."""
    return told(f"hold call={call}")


@contextlib.contextmanager
def being_given(mib: int) -> Iterator[None]:
    """Another thread is charged for as much meanwhile, and does not have it before the end."""
    charged = ledger_mib()
    context = ctypes.c_void_p()
    cuda.cuCtxGetCurrent(ctypes.byref(context))

    def take() -> None:
        cuda.cuCtxSetCurrent(context)
        assert pitched(mib)[0] == 0

    taker = threading.Thread(target=take)
    with held("cuMemAllocPitch_v2"):
        taker.start()
        for _ in range(5000):
            if ledger_mib() >= charged + mib:
                break
            time.sleep(0.001)
        yield
    taker.join()


def change(before: str, after: str) -> None:
    """Write the node's configuration anew, with one text in place of another."""
    config = Path(os.environ["VGPU_SIM_DRIVER"])
    text = config.read_text()
    assert before in text
    _configure(config, text.replace(before, after))


@contextlib.contextmanager
def nvml_hanging() -> Iterator[None]:
    """Every call of NVML waits meanwhile."""
    config = Path(os.environ["VGPU_SIM_DRIVER"])
    before = config.read_text()
    _configure(config, before + "hang\n")
    time.sleep(0.03)  # who is in such a call already comes out
    yield
    _configure(config, before)


def _configure(config: Path, text: str) -> None:
    fresh = config.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(config)


def pid_told(own: bool = False) -> None:
    """The agent tells this process its pid on the node, where pids are hidden (hook/sim); or its `own`."""
    slots_at, slot_bytes, slots = 1856, 1960, 1024
    told = False
    with Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).open("r+b") as file:
        for at in range(slots_at, slots_at + slot_bytes * slots, slot_bytes):
            if struct.unpack("<i", os.pread(file.fileno(), 4, at))[0] == os.getpid():
                os.pwrite(
                    file.fileno(), struct.pack("<i", os.getpid() + (0 if own else 1 << 24)), at + 4
                )
                told = True
    assert told, "no slot"


def settled(mib: float, within_s: float = 60) -> None:
    """Wait until the hook counts this much: what a process left behind is not gone at once."""
    deadline = time.monotonic() + within_s
    while charged_mib() != mib and time.monotonic() < deadline:
        time.sleep(0.01)


def pitched(mib: int) -> tuple[int, int]:
    """CUresult and address of rows of 500 bytes, which are padded to 512."""
    address, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    width, rows = ctypes.c_size_t(500), ctypes.c_size_t(mib << 11)
    result = cuda.cuMemAllocPitch_v2(ctypes.byref(address), ctypes.byref(pitch), width, rows, 4)
    return int(result), address.value


# --- pools ----------------------------------------------------------------------------------------


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("allocType", ctypes.c_int), ("handleTypes", ctypes.c_int), ("location", Location),
        ("security", ctypes.c_void_p), ("maxSize", ctypes.c_size_t), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]  # fmt: skip


RESERVED, USED, THRESHOLD = 5, 7, 4


def pool(kind: int = 1, device: int = 0, memory: int = 1) -> ctypes.c_void_p:
    """A pool on the device (or, kind 2, in host memory; kind 0, memory 2: managed, nowhere)."""
    made, props = ctypes.c_void_p(), PoolProps(allocType=memory, location=Location(kind, device))
    assert cuda.cuMemPoolCreate(ctypes.byref(made), ctypes.byref(props)) == 0
    return made


def default_pool(device: int = 0, function: str = "cuDeviceGetDefaultMemPool") -> ctypes.c_void_p:
    """The device's own pool."""
    found = ctypes.c_void_p()
    assert getattr(cuda, function)(ctypes.byref(found), device) == 0
    return found


def pool_at(function: str, kind: int, device: int = 0, memory: int = 1) -> ctypes.c_void_p:
    """What cuMemGetDefaultMemPool or cuMemGetMemPool gives for a location."""
    found, location = ctypes.c_void_p(), Location(kind, device)
    result = getattr(cuda, function)(ctypes.byref(found), ctypes.byref(location), memory)
    assert result == 0, result
    return found


def pool_mib(of: ctypes.c_void_p, attribute: int = RESERVED) -> float:
    """A figure of a pool as the driver gives it."""
    value = ctypes.c_uint64()
    assert cuda.cuMemPoolGetAttribute(of, attribute, ctypes.byref(value)) == 0
    return value.value / MIB


def keep(of: ctypes.c_void_p, mib: int) -> None:
    """Let the pool keep this much when it is unused."""
    value = ctypes.c_uint64(mib * MIB)
    assert cuda.cuMemPoolSetAttribute(of, THRESHOLD, ctypes.byref(value)) == 0


def draw(mib: float, of: Any = None, stream: Any = None, suffix: str = "") -> tuple[int, int]:
    """CUresult and address of a stream-ordered allocation."""
    address, size = ctypes.c_uint64(), ctypes.c_size_t(int(mib * MIB))
    if of is None:
        result = getattr(cuda, "cuMemAllocAsync" + suffix)(ctypes.byref(address), size, stream)
    else:
        function = getattr(cuda, "cuMemAllocFromPoolAsync" + suffix)
        result = function(ctypes.byref(address), size, of, stream)
    return int(result), address.value


def put(address: int, stream: Any = None, suffix: str = "") -> int:
    """CUresult of giving stream-ordered memory back."""
    return int(getattr(cuda, "cuMemFreeAsync" + suffix)(ctypes.c_uint64(address), stream))


# --- physical memory ------------------------------------------------------------------------------

PAGE_MIB = 2


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handleTypes", ctypes.c_int), ("location", Location),
        ("security", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8),
    ]  # fmt: skip


class MulticastProp(ctypes.Structure):
    _fields_ = [
        ("devices", ctypes.c_uint), ("size", ctypes.c_size_t),
        ("handleTypes", ctypes.c_ulonglong), ("flags", ctypes.c_ulonglong),
    ]  # fmt: skip


def u64(value: int) -> ctypes.c_uint64:
    """As an argument."""
    return ctypes.c_uint64(value)


def create(mib: int, kind: int = 1, device: int = 0) -> tuple[int, int]:
    """CUresult and handle of physical memory."""
    handle, prop = ctypes.c_uint64(), AllocationProp(type=1, location=Location(kind, device))
    result = cuda.cuMemCreate(ctypes.byref(handle), u64(mib * MIB), ctypes.byref(prop), u64(0))
    return int(result), handle.value


def release(handle: int) -> int:
    """CUresult of giving a reference back."""
    return int(cuda.cuMemRelease(u64(handle)))


def reserve(mib: int) -> int:
    """Address space."""
    address = ctypes.c_uint64()
    assert (
        cuda.cuMemAddressReserve(ctypes.byref(address), u64(mib * MIB), u64(0), u64(0), u64(0)) == 0
    )
    return address.value


def map_at(address: int, mib: int, handle: int) -> int:
    """CUresult of a mapping."""
    return int(cuda.cuMemMap(u64(address), u64(mib * MIB), u64(0), u64(handle), u64(0)))


def unmap(address: int, mib: int) -> int:
    """CUresult of ending mappings."""
    return int(cuda.cuMemUnmap(u64(address), u64(mib * MIB)))


def retain(address: int) -> int:
    """A handle of what is mapped there."""
    handle = ctypes.c_uint64()
    result = cuda.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address))
    assert result == 0, result
    return handle.value


def export(handle: int) -> int:
    """A file descriptor that stands for the memory."""
    fd = ctypes.c_int()
    assert cuda.cuMemExportToShareableHandle(ctypes.byref(fd), u64(handle), 1, u64(0)) == 0
    return fd.value


def take_in(fd: int) -> int:
    """A handle of exported memory."""
    handle = ctypes.c_uint64()
    result = cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), 1)
    assert result == 0, result
    return handle.value


def multicast(mib: int, devices: int = 1) -> int:
    """A multicast object."""
    handle, prop = ctypes.c_uint64(), MulticastProp(devices=devices, size=mib * MIB)
    assert cuda.cuMulticastCreate(ctypes.byref(handle), ctypes.byref(prop)) == 0
    assert not any(cuda.cuMulticastAddDevice(handle, device) for device in range(devices))
    return handle.value


# --- graphs ---------------------------------------------------------------------------------------


class AllocationNode(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProps), ("access", ctypes.c_void_p), ("accessCount", ctypes.c_size_t),
        ("bytes", ctypes.c_size_t), ("address", ctypes.c_uint64),
    ]  # fmt: skip


class FreeNode(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("reserved", ctypes.c_int * 3), ("address", ctypes.c_uint64),
        ("more", ctypes.c_ubyte * 224), ("reserved2", ctypes.c_longlong),
    ]  # fmt: skip


class NodeParams(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("reserved", ctypes.c_int * 3), ("allocation", AllocationNode),
        ("more", ctypes.c_ubyte * 112), ("reserved2", ctypes.c_longlong),
    ]  # fmt: skip


CHILD, ALLOCATION, FREE = 4, 10, 11


def graph() -> ctypes.c_void_p:
    """An empty graph."""
    made = ctypes.c_void_p()
    assert cuda.cuGraphCreate(ctypes.byref(made), 0) == 0
    return made


def allocation(mib: float, device: int = 0) -> AllocationNode:
    """What an allocation node is told."""
    pool_props = PoolProps(allocType=1, location=Location(1, device))
    return AllocationNode(pool=pool_props, bytes=int(mib * MIB))


def add_allocation(to: ctypes.c_void_p, mib: float, after: ctypes.c_void_p | None = None) -> Any:
    """An allocation node; gives the node and its address."""
    node, params = ctypes.c_void_p(), allocation(mib)
    before = (ctypes.c_void_p * 1)(after) if after else None
    count = ctypes.c_size_t(1 if after else 0)
    result = cuda.cuGraphAddMemAllocNode(
        ctypes.byref(node), to, before, count, ctypes.byref(params)
    )
    assert result == 0, result
    return node, params.address


def add_free(
    to: ctypes.c_void_p, address: int, after: ctypes.c_void_p | None = None
) -> ctypes.c_void_p:
    """The node that frees it."""
    node, before = ctypes.c_void_p(), (ctypes.c_void_p * 1)(after) if after else None
    count = ctypes.c_size_t(1 if after else 0)
    result = cuda.cuGraphAddMemFreeNode(ctypes.byref(node), to, before, count, u64(address))
    assert result == 0, result
    return node


def add_free_node(to: ctypes.c_void_p, address: int, suffix: str = "") -> int:
    """The same by cuGraphAddNode in any version."""
    return add_params(to, FreeNode(type=FREE, address=address), suffix)


def add_params(to: ctypes.c_void_p, params: NodeParams | FreeNode, suffix: str = "") -> int:
    """CUresult of cuGraphAddNode in any version."""
    node = ctypes.c_void_p()
    edges = [] if suffix == "" else [None]
    function = getattr(cuda, "cuGraphAddNode" + suffix)
    return int(
        function(ctypes.byref(node), to, None, *edges, ctypes.c_size_t(0), ctypes.byref(params))
    )


def passing(mib: int) -> ctypes.c_void_p:
    """A graph that allocates this much and frees it again."""
    made = graph()
    node, address = add_allocation(made, mib)
    add_free(made, address, node)
    return made


AUTO_FREE = 1


def instantiate(of: ctypes.c_void_p, flags: int = 0) -> ctypes.c_void_p:
    """The graph, to be launched."""
    made = ctypes.c_void_p()
    result = cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), of, u64(flags))
    assert result == 0, result
    return made


def launch(executable: ctypes.c_void_p, stream: Any = None) -> int:
    """CUresult of running it, waited for."""
    result = int(cuda.cuGraphLaunch(executable, stream))
    cuda.cuCtxSynchronize()
    return result


def new_stream() -> ctypes.c_void_p:
    """A stream."""
    made = ctypes.c_void_p()
    assert cuda.cuStreamCreate(ctypes.byref(made), 1) == 0
    return made


def capture(stream: ctypes.c_void_p, mib: int) -> ctypes.c_void_p:
    """What allocating and freeing on a stream under capture becomes."""
    made = ctypes.c_void_p()
    assert cuda.cuStreamBeginCapture_v2(stream, 2) == 0
    result, address = draw(mib, stream=stream)
    assert (result, put(address, stream)) == (0, 0)
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(made)) == 0
    return made


def capture_free(stream: ctypes.c_void_p, address: int) -> ctypes.c_void_p:
    """What freeing on a stream under capture becomes."""
    made = ctypes.c_void_p()
    assert cuda.cuStreamBeginCapture_v2(stream, 2) == 0
    assert put(address, stream) == 0
    assert cuda.cuStreamEndCapture(stream, ctypes.byref(made)) == 0
    return made


# --- arrays ---------------------------------------------------------------------------------------


class Array2D(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
        ("format", ctypes.c_int), ("channels", ctypes.c_uint),
    ]  # fmt: skip


class Array2DV1(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_uint), ("height", ctypes.c_uint),
        ("format", ctypes.c_int), ("channels", ctypes.c_uint),
    ]  # fmt: skip


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint),
    ]  # fmt: skip


class Array3DV1(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_uint), ("height", ctypes.c_uint), ("depth", ctypes.c_uint),
        ("format", ctypes.c_int), ("channels", ctypes.c_uint), ("flags", ctypes.c_uint),
    ]  # fmt: skip


FLOAT, BYTE, HALF = 0x20, 0x01, 0x10
LAYERED, CUBEMAP, SPARSE, DEFERRED = 1, 4, 0x40, 0x80


def array(function: str, description: Any, *more: Any) -> tuple[int, ctypes.c_void_p]:
    """CUresult and handle of an array or a mipmap."""
    made = ctypes.c_void_p()
    result = getattr(cuda, function)(ctypes.byref(made), ctypes.byref(description), *more)
    return int(result), made
