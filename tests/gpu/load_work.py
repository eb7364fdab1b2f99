"""Run as a program: loads whose share of GPU time is measured, one JSON object per line.

    load_work.py small [ROUNDS]     a stream of kernels of 50 us, 20 a piece
    load_work.py graph [ROUNDS]     a CUDA graph of 20 such kernels, replayed
    load_work.py memory [ROUNDS]    kernels on the whole GPU that copy memory, and do nothing else
    load_work.py compute [ROUNDS]   kernels of 5 ms
    load_work.py streams [ROUNDS]   kernels of 500 us on the whole GPU, on 16 streams in turn
    load_work.py contexts [ROUNDS]  such kernels, in turn on a stream of the primary context and on one
                                    of another context of this process
    load_work.py legacy [ROUNDS]    such kernels, every second one in the legacy stream, the others in 8
                                    streams that wait for it

ROUNDS: what an earlier run has told, so that all do the same work. Then see pace.py for what can be
asked for. Standard library only, and no CUDA toolkit: kernels are text that the driver compiles.
"""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from cuda_work import FIRST_ROUNDS, MIB, CudaError, Gpu, say
from pace import Pieces, serve

COPY = b"""
.version 6.4
.target sm_70
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 count, .param .u64 rounds)
{
    .reg .u64 %to, %from, %count, %step, %at, %place, %left;
    .reg .u32 %a, %b, %c, %d, %block, %blocks, %thread, %threads;
    .reg .pred %more;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u64 %count, [count];
    ld.param.u64 %left, [rounds];
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %threads, %ntid.x;
    mul.wide.u32 %step, %blocks, %threads;
again:
    mul.wide.u32 %at, %block, %threads;
    cvt.u64.u32 %place, %thread;
    add.u64 %at, %at, %place;
next:
    setp.ge.u64 %more, %at, %count;
    @%more bra done;
    shl.b64 %place, %at, 4;
    add.u64 %place, %place, %from;
    ld.global.v4.u32 {%a, %b, %c, %d}, [%place];
    shl.b64 %place, %at, 4;
    add.u64 %place, %place, %to;
    st.global.v4.u32 [%place], {%a, %b, %c, %d};
    add.u64 %at, %at, %step;
    bra next;
done:
    sub.u64 %left, %left, 1;
    setp.ne.u64 %more, %left, 0;
    @%more bra again;
    ret;
}
\0"""
SMALL_NS, COMPUTE_NS, COPY_NS, PLACED_NS = 50_000, 5_000_000, 1_000_000, 500_000
SMALL_ONES, PLACED_ONES = 20, 16
STREAMS, BLOCKING_STREAMS = 16, 8  # a program has 8 queues of the hardware by default
COPIED_MIB = 256  # more than any cache of a GPU holds
BLOCKS, THREADS = 2048, 256
THREAD_LOCAL = 1


@dataclass(frozen=True)
class Place:
    """Where kernels go: a stream, by default the legacy one, of a context."""

    gpu: Gpu
    stream: ctypes.c_void_p | None = None

    def launch(self) -> None:
        """Put a kernel there."""
        self.gpu.enter()
        self.gpu.launch(self.stream)

    def mark(self, old: Any) -> Any:
        """Put an event there, behind what is there."""
        self.gpu.enter()
        event = old or self.gpu.event()
        self.gpu.call("cuEventRecord", event, self.stream)
        return event

    def wait(self, event: Any) -> None:
        """Wait for an event that was put there."""
        self.gpu.enter()
        self.gpu.call("cuEventSynchronize", event)


class Work:
    """What a piece is: how it is put into the GPU's queues, and the places where it ends."""

    def __init__(self, enqueue: Callable[[], None], ends: Sequence[Place]) -> None:
        self.enqueue, self._ends = enqueue, ends

    def mark(self, old: Any) -> Any:
        """Events behind it, in the place of old ones if there are any."""
        events = old or [None] * len(self._ends)
        return [place.mark(event) for place, event in zip(self._ends, events, strict=True)]

    def wait(self, events: Any) -> None:
        """Wait for what is before these events."""
        for place, event in zip(self._ends, events, strict=True):
            place.wait(event)


class Copier:
    """The GPU's memory, read and written by all of the GPU. Raises CudaError."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        gpu.call("cuModuleLoadData", ctypes.byref(module), COPY)
        gpu.call("cuModuleGetFunction", ctypes.byref(self.function), module, b"copy")
        self.to, self.source = ctypes.c_uint64(), ctypes.c_uint64()
        for address in (self.to, self.source):
            gpu.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(COPIED_MIB * MIB))
        self.count = ctypes.c_uint64(COPIED_MIB * MIB // 16)
        values = (self.to, self.source, self.count, gpu.rounds)
        self.arguments = (ctypes.c_void_p * 4)(*map(ctypes.addressof, values))

    def launch(self) -> None:
        """Copy it all, as often as there are rounds."""
        self.gpu.call(
            "cuLaunchKernel", self.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, self.arguments,
            None,
        )  # fmt: skip


def graph_of(gpu: Gpu, kernels: int) -> Callable[[], None]:
    """So many of the GPU's kernels as one graph; gives what launches it."""
    stream, graph, ready = gpu.stream(), ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuStreamBeginCapture_v2", stream, THREAD_LOCAL)
    for _ in range(kernels):
        gpu.launch(stream)
    gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
    return lambda: gpu.call("cuGraphLaunch", ready, None)


def in_streams(gpu: Gpu) -> Work:
    """Kernels on many streams in turn, none of which waits for another."""
    places = [Place(gpu, gpu.stream()) for _ in range(STREAMS)]
    return Work(in_turn(places), places)


def in_contexts(gpu: Gpu) -> Work:
    """Kernels in two contexts in turn, on a stream of each; the GPU changes between them."""
    places = [Place(gpu, gpu.stream())]
    other = gpu.another()
    places.append(Place(other, other.stream()))
    return Work(in_turn(places), places)


def beside_legacy(gpu: Gpu) -> Work:
    """Kernels in the legacy stream and, in turn, in streams of which each waits for it, and it for them."""
    legacy = Place(gpu)
    places = [
        place
        for _ in range(BLOCKING_STREAMS)
        for place in (Place(gpu, gpu.stream(blocking=True)), legacy)
    ]
    return Work(in_turn(places), [legacy])


def in_turn(places: Sequence[Place]) -> Callable[[], None]:
    """What launches the kernels of a piece, each in the next of these places."""

    def some() -> None:
        for place in islice(cycle(places), PLACED_ONES):
            place.launch()

    return some


PLACED: Mapping[str, Callable[[Gpu], Work]] = {
    "streams": in_streams,
    "contexts": in_contexts,
    "legacy": beside_legacy,
}


def load(gpu: Gpu, kind: str, rounds: int) -> Work:
    """Work of this kind; the GPU's rounds are those of its kernels from then on."""
    if kind not in PLACED:
        return Work(queued(gpu, kind, rounds), [Place(gpu)])
    gpu.fill()
    gpu.rounds.value = rounds or FIRST_ROUNDS
    if not rounds:
        gpu.last(PLACED_NS)
    return PLACED[kind](gpu)


def queued(gpu: Gpu, kind: str, rounds: int) -> Callable[[], None]:
    """What puts a piece of this kind into the legacy stream."""
    gpu.rounds.value = rounds or FIRST_ROUNDS
    if kind == "memory":
        copier = Copier(gpu)
        gpu.rounds.value = rounds or 1
        if not rounds:
            gpu.last(COPY_NS, copier.launch)
        return copier.launch
    if not rounds:
        gpu.last(COMPUTE_NS if kind == "compute" else SMALL_NS)
    if kind == "graph":
        return graph_of(gpu, SMALL_ONES)
    if kind == "compute":
        return gpu.launch

    def some() -> None:
        for _ in range(SMALL_ONES):
            gpu.launch()

    return some


def main(kind: str, rounds: str = "0") -> None:
    gpu = Gpu().start()
    work = load(gpu, kind, int(rounds))
    serve(Pieces(work.enqueue, work.mark, work.wait), say, rounds=gpu.rounds.value)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CudaError as error:
        say(error=str(error))
        raise SystemExit(1) from None
