"""Run as a program: loads whose share of GPU time is measured, one JSON object per line.

    load_work.py small [ROUNDS]     a stream of kernels of 50 us, 20 a piece
    load_work.py graph [ROUNDS]     a CUDA graph of 20 such kernels, replayed
    load_work.py memory [ROUNDS]    kernels on the whole GPU that copy memory, and do nothing else
    load_work.py compute [ROUNDS]   kernels of 5 ms

ROUNDS: what an earlier run has told, so that all do the same work. Then see pace.py for what can be
asked for. Standard library only, and no CUDA toolkit: kernels are text that the driver compiles.
"""

import ctypes
import sys
from collections.abc import Callable
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
SMALL_NS, COMPUTE_NS, COPY_NS = 50_000, 5_000_000, 1_000_000
SMALL_ONES = 20
COPIED_MIB = 256  # more than any cache of a GPU holds
BLOCKS, THREADS = 2048, 256
THREAD_LOCAL = 1


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


def load(gpu: Gpu, kind: str, rounds: int) -> Callable[[], None]:
    """What puts a piece of this kind into the GPU's queue."""
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
    enqueue = load(gpu, kind, int(rounds))

    def mark(old: Any) -> Any:
        event = old or gpu.event()
        gpu.call("cuEventRecord", event, None)
        return event

    pieces = Pieces(enqueue, mark, lambda event: gpu.call("cuEventSynchronize", event))
    serve(pieces, say, rounds=gpu.rounds.value)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CudaError as error:
        say(error=str(error))
        raise SystemExit(1) from None
