"""Run as a program: work for a GPU through the driver's own calls, one JSON object per line.

    cuda_work.py probe              what GPU there is
    cuda_work.py hold S             keep the GPU busy for S seconds; "ready" first
    cuda_work.py launches           what a launch costs the caller
    cuda_work.py allocations        what cuMemAlloc and cuMemFree cost the caller
    cuda_work.py illegal            a kernel that writes where nothing is
    cuda_work.py events [STREAMS]   what cuEventRecord costs, and how long an idle stream's event takes,
                                    while so many others are kept full (default 0), or:
    cuda_work.py events context     while a stream of another context of ours is
    cuda_work.py context            what a context takes of the memory that CUDA shows
    cuda_work.py pools              in which steps the default pool grows, and when it shrinks

Standard library only, and no CUDA toolkit: the kernel is text that the driver compiles.
"""

import ctypes
import json
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from statistics import median
from typing import Any

WORK = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry work(.param .u64 rounds)
{
    .reg .u64 %left;
    .reg .f32 %x;
    .reg .pred %more;
    ld.param.u64 %left, [rounds];
    mov.f32 %x, 0f3F800000;
again:
    fma.rn.f32 %x, %x, %x, %x;
    setp.gt.f32 %more, %x, 0f00000000;
    @!%more trap;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra again;
    ret;
}
\0"""
ILLEGAL = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry illegal()
{
    .reg .u64 %nowhere;
    .reg .u32 %x;
    mov.u64 %nowhere, 64;
    mov.u32 %x, 7;
    st.global.u32 [%nowhere], %x;
    ret;
}
\0"""
QUEUE = 8  # launches that are never waited for, so that the GPU has always something to do
FIRST_ROUNDS = 20_000
MANY = 20_000
NON_BLOCKING = 1
NOT_READY = 600
RESERVED_MEM_CURRENT = 5  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
MULTIPROCESSORS, THREADS_OF_EACH = 16, 39  # numbers of CUdevice_attribute
THREADS = 256  # of a block; as many of them as fit fill a multiprocessor of any model
MIB = 1 << 20


class CudaError(Exception):
    """A call of the driver failed; the message says which, and with what."""


class Gpu:
    """The first visible GPU, with a context and a kernel. Raises CudaError."""

    def __init__(self) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise CudaError("there is no libcuda.so.1, the library of NVIDIA's driver") from None
        self.context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        self.function, self.rounds = ctypes.c_void_p(), ctypes.c_uint64(FIRST_ROUNDS)
        self.grid: tuple[int, ...] = (1,) * 6  # one thread
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self.rounds))
        self.call("cuInit", 0)
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if count.value < 1:
            raise CudaError("the driver lists no GPU")

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver."""
        result = getattr(self.cuda, name)(*arguments)
        if result:
            raise CudaError(f"{name} answers {result}")

    def start(self) -> "Gpu":
        """Make the context, and compile the kernel."""
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.enter()
        return self.load()

    def enter(self) -> None:
        """Make the context current to this thread."""
        self.call("cuCtxSetCurrent", self.context)

    def load(self) -> "Gpu":
        """Compile the kernel for the context."""
        self.call("cuModuleLoadData", ctypes.byref(self.module), WORK)
        self.call("cuModuleGetFunction", ctypes.byref(self.function), self.module, b"work")
        return self

    def fill(self) -> None:
        """Let a kernel have all of the GPU's threads, so that two at once take twice as long as one."""
        number, threads = ctypes.c_int(), 1
        for attribute in (MULTIPROCESSORS, THREADS_OF_EACH):
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, 0)
            threads *= number.value
        self.grid = (threads // THREADS, 1, 1, THREADS, 1, 1)

    def launch(self, stream: ctypes.c_void_p | None = None) -> None:
        """What computes for `rounds`; one thread has the GPU for its process's turn all the same."""
        self.call("cuLaunchKernel", self.function, *self.grid, 0, stream, self._arguments, None)

    def event(self) -> ctypes.c_void_p:
        """A new event, with timing."""
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), 0)
        return made

    def stream(self, *, urgent: bool = False, blocking: bool = False) -> ctypes.c_void_p:
        """A new stream; `urgent`: of the greatest priority, as the hook's.

        `blocking`: it and the legacy stream wait for each other; otherwise it waits for none.
        """
        made, priority = ctypes.c_void_p(), ctypes.c_int()
        if urgent:
            self.call("cuCtxGetStreamPriorityRange", None, ctypes.byref(priority))
        flags = 0 if blocking else NON_BLOCKING
        self.call("cuStreamCreateWithPriority", ctypes.byref(made), flags, priority)
        return made

    def another(self) -> "Gpu":
        """The same GPU in another context of this process, which is current to this thread."""
        other = Gpu()
        other.rounds.value, other.grid = self.rounds.value, self.grid
        other.call("cuCtxCreate_v2", ctypes.byref(other.context), 0, 0)
        return other.load()

    def last(self, wanted_ns: int, launch: Callable[[], None] | None = None) -> None:
        """Make a kernel take about so long, with nobody else on the GPU."""
        launch = launch or self.launch
        begin, end, took_ms = self.event(), self.event(), ctypes.c_float()
        for _ in range(4):  # the first ones find the clocks low
            self.call("cuEventRecord", begin, None)
            for _ in range(10):
                launch()
            self.call("cuEventRecord", end, None)
            self.call("cuEventSynchronize", end)
            self.call("cuEventElapsedTime", ctypes.byref(took_ms), begin, end)
            took_ns = took_ms.value * 1e6 / 10
            if took_ns > 0:
                self.rounds.value = max(1, round(self.rounds.value * wanted_ns / took_ns))


def say(**answer: Any) -> None:
    """One line."""
    print(json.dumps(answer), flush=True)  # noqa: T201 - how it speaks


def go() -> None:
    """Say that we are ready, and wait until the other side wants us to begin."""
    say(ready=True)
    sys.stdin.readline()


def probe() -> None:
    gpu = Gpu()
    name, version, uuid = ctypes.create_string_buffer(256), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    gpu.call("cuDeviceGetName", name, 256, 0)
    gpu.call("cuDriverGetVersion", ctypes.byref(version))
    gpu.call("cuDeviceGetUuid", uuid, 0)
    text = bytes(uuid).hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    say(name=name.value.decode(errors="replace"), cuda=cuda, uuid="GPU-" + "-".join(parts))


def hold(seconds: float) -> None:
    gpu = Gpu().start()
    gpu.last(5_000_000)
    go()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for _ in range(QUEUE):
            gpu.launch()
        gpu.call("cuCtxSynchronize")
    say(held=True)


def each_ns(what: Any, count: int = MANY, rounds: int = 9, settle: Any = None) -> list[float]:
    """Processor time of this thread for one call, in each of some rounds."""
    found = []
    for _ in range(rounds):
        began = time.thread_time_ns()
        for _ in range(count):
            what()
        found.append((time.thread_time_ns() - began) / count)
        if settle:
            settle()
    return found[1:]


def launches() -> None:
    gpu = Gpu().start()
    gpu.rounds.value = 1
    some = min(MANY, 500)  # fewer than a stream holds, so that no launch waits
    found = each_ns(gpu.launch, some, 20, lambda: gpu.call("cuCtxSynchronize"))
    say(ns=median(found), least_ns=min(found))


def allocations() -> None:
    gpu = Gpu().start()
    address, size = ctypes.c_uint64(), ctypes.c_size_t(MIB)

    def pair() -> None:
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), size)
        gpu.call("cuMemFree_v2", address)

    found = each_ns(pair, 200, 20)
    say(ns=median(found), least_ns=min(found))


def illegal() -> None:
    """What the driver says of it; this process has no context that works from then on."""
    gpu = Gpu().start()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuModuleLoadData", ctypes.byref(module), ILLEGAL)
    gpu.call("cuModuleGetFunction", ctypes.byref(function), module, b"illegal")
    go()
    launched = gpu.cuda.cuLaunchKernel(function, *(1,) * 6, 0, None, None, None)
    say(result=launched or gpu.cuda.cuCtxSynchronize())


def keep_full(gpu: Gpu, streams: int, over: threading.Event) -> None:
    """Let that many streams always have something to do, in this context."""
    gpu.enter()
    queue = deque((gpu.stream(), gpu.event()) for _ in range(streams))
    queue.extend((stream, gpu.event()) for stream, _ in tuple(queue))
    for stream, event in queue:
        gpu.launch(stream)
        gpu.call("cuEventRecord", event, stream)
    while not over.is_set():
        stream, event = queue[0]
        gpu.call("cuEventSynchronize", event)
        gpu.launch(stream)
        gpu.call("cuEventRecord", event, stream)
        queue.rotate(-1)
    gpu.call("cuCtxSynchronize")


def delay_us(gpu: Gpu, stream: ctypes.c_void_p, event: ctypes.c_void_p) -> float:
    """How long an event on this stream takes now."""
    began = time.perf_counter_ns()
    gpu.call("cuEventRecord", event, stream)
    while (result := gpu.cuda.cuEventQuery(event)) == NOT_READY:
        pass
    if result:
        raise CudaError(f"cuEventQuery answers {result}")
    return (time.perf_counter_ns() - began) / 1e3


def held_up_us(gpu: Gpu, stream: ctypes.c_void_p, pair: tuple[ctypes.c_void_p, ...]) -> float:
    """For how long an event holds up its stream: the second of two right behind a kernel."""
    took_ms = ctypes.c_float()
    gpu.launch(stream)
    for event in pair:
        gpu.call("cuEventRecord", event, stream)
    gpu.call("cuEventSynchronize", pair[-1])
    gpu.call("cuEventElapsedTime", ctypes.byref(took_ms), *pair)
    return took_ms.value * 1e3


def events(kept_full: str = "0") -> None:
    """The delays are those of an event on a stream of ours that has nothing else to do."""
    gpu = Gpu().start()
    stream, urgent, event = gpu.stream(), gpu.stream(urgent=True), gpu.event()
    record, query = gpu.cuda.cuEventRecord, gpu.cuda.cuEventQuery
    cost = each_ns(
        lambda: record(event, stream), 500, 20, lambda: gpu.call("cuStreamSynchronize", stream)
    )
    asked = each_ns(lambda: query(event), 500, 20)
    pair = gpu.event(), gpu.event()
    holds_us = [held_up_us(gpu, stream, pair) for _ in range(400)]
    over = threading.Event()
    if kept_full != "0":
        gpu.last(1_000_000)
        working = gpu.another() if kept_full == "context" else gpu
        gpu.enter()
        streams = 1 if kept_full == "context" else int(kept_full)
        threading.Thread(target=keep_full, args=(working, streams, over), daemon=True).start()
        time.sleep(0.1)
    go()
    delays_us, urgent_us = [], []
    for _ in range(400):
        delays_us.append(delay_us(gpu, stream, event))
        time.sleep(0.0015)
        urgent_us.append(delay_us(gpu, urgent, event))
        time.sleep(0.0015)
    over.set()
    say(record_ns=median(cost), query_ns=median(asked), held_up_us=sorted(holds_us),
        delays_us=sorted(delays_us), urgent_us=sorted(urgent_us))  # fmt: skip


def context() -> None:
    gpu = Gpu()
    gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(gpu.context), 0)
    gpu.enter()
    room, total = ctypes.c_size_t(), ctypes.c_size_t()
    gpu.call("cuMemGetInfo_v2", ctypes.byref(room), ctypes.byref(total))
    say(used_mib=(total.value - room.value) / MIB, total_mib=total.value / MIB)
    go()


def pools() -> None:
    """What is reserved, as the driver says it, while allocations of 1 to 96 MiB pile up."""
    gpu = Gpu().start()
    pool, reserved = ctypes.c_void_p(), ctypes.c_uint64()
    gpu.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)

    def reserved_mib() -> float:
        gpu.call("cuMemPoolGetAttribute", pool, RESERVED_MEM_CURRENT, ctypes.byref(reserved))
        return reserved.value / MIB

    held, steps, last_mib = [], Counter[float](), reserved_mib()
    for mib in (*(1,) * 48, *(20,) * 8, 96):
        address = ctypes.c_uint64()
        gpu.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(mib * MIB), None)
        held.append(address)
        now_mib = reserved_mib()
        steps.update([now_mib - last_mib] * (now_mib != last_mib))
        last_mib = now_mib
    for address in held:
        gpu.call("cuMemFreeAsync", address, None)
    freed_mib = reserved_mib()
    gpu.call("cuStreamSynchronize", None)
    synchronized_mib = reserved_mib()
    gpu.call("cuMemPoolTrimTo", pool, ctypes.c_size_t(0))
    say(steps_mib=sorted(steps.items()), top_mib=last_mib, freed_mib=freed_mib,
        synchronized_mib=synchronized_mib, trimmed_mib=reserved_mib())  # fmt: skip


PROGRAMS = {
    "probe": lambda _: probe(),
    "hold": lambda words: hold(float(words[0])),
    "launches": lambda _: launches(),
    "allocations": lambda _: allocations(),
    "illegal": lambda _: illegal(),
    "events": lambda words: events(*words),
    "context": lambda _: context(),
    "pools": lambda _: pools(),
}

if __name__ == "__main__":
    try:
        PROGRAMS[sys.argv[1]](sys.argv[2:])
    except CudaError as error:
        say(error=str(error))
        raise SystemExit(1) from None
