"""Runs under the hook: graphs made, launched in turn and at once, freed and trimmed at random.

Sizes, who frees what, and the order are drawn from a seed. At rest the hook's count and the simulated
GPU's must agree; how much the GPU held at most is the test's to look at. Who frees at its launch all that it
needs is never refused.
"""

import contextlib
import ctypes
import random
import threading
from dataclasses import dataclass, field
from typing import Any

from cuda_calls import alloc, cuda, free
from memory_calls import (
    AUTO_FREE,
    add_allocation,
    add_free,
    both,
    draw,
    graph,
    instantiate,
    new_stream,
    put,
    refused,
)

SIZES_MIB = (3, 10, 20, 31, 33, 50, 70)
SUCCESS, OUT_OF_MEMORY = 0, 2
REFUSALS = ("cuGraphLaunch", "cuGraphLaunch.memory")  # having done nothing, or freed what was left


@dataclass
class Graph:
    """An executable graph, and the addresses that it leaves to the program."""

    made: Any
    executable: Any
    left: list[int] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)  # that others leave
    keeps_all: bool = False  # what it allocates, until its next launch


class Tenant:
    """A program that is as odd as the driver allows."""

    def __init__(self, seed: int, *, auto_free: bool = False) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.flags = AUTO_FREE if auto_free else 0
        self.live: set[int] = set()  # that surely are
        self.wrong = ""
        self.streams = [None, new_stream(), new_stream()]
        self.graphs: list[Graph] = []
        self.unclaimed: list[int] = []  # left addresses that no graph frees by a node
        self.plain: list[int] = []
        self.trace: list[str] = []

    def build(self) -> None:
        """Nodes that allocate; some freed by the graph, and some that others have left."""
        made, last, left, passing = graph(), None, [], 0
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            last, address = add_allocation(made, self.random.choice(SIZES_MIB), last)
            if self.random.random() < 0.5:
                last = add_free(made, address, last)
                passing += 1
            else:
                left.append(address)
        others = [a for a in self.unclaimed if self.random.random() < 0.4]
        for address in others:
            self.unclaimed.remove(address)
            last = add_free(made, address, last)
        self.unclaimed += left
        executable, keeps_all = instantiate(made, self.flags), bool(self.flags and not passing)
        self.graphs.append(Graph(made, executable, left, others, keeps_all))

    def capture(self) -> None:
        """The same by way of a stream."""
        stream, made, left = new_stream(), ctypes.c_void_p(), []
        assert cuda.cuStreamBeginCapture_v2(stream, 2) == SUCCESS
        for _ in range(self.random.choice((1, 2))):
            result, address = draw(self.random.choice(SIZES_MIB), stream=stream)
            assert result == SUCCESS
            if self.random.random() < 0.5:
                put(address, stream)
            else:
                left.append(address)
        others = [self.unclaimed.pop()] if self.unclaimed and self.random.random() < 0.5 else []
        for address in others:
            put(address, stream)
        assert cuda.cuStreamEndCapture(stream, ctypes.byref(made)) == SUCCESS
        self.unclaimed += left
        self.graphs.append(Graph(made, instantiate(made, self.flags), left, others))

    def launch(self) -> None:
        """One, on any stream, sometimes uploaded before, sometimes refused by the driver."""
        if not self.graphs:
            return
        chosen = self.random.choice(self.graphs)
        stream = self.random.choice(self.streams)
        if self.random.random() < 0.1:
            cuda.cuGraphUpload(chosen.executable, stream)
        unlucky = self.random.choice((None,) * 18 + REFUSALS)
        with refused(unlucky) if unlucky else contextlib.nullcontext():
            result = cuda.cuGraphLaunch(chosen.executable, stream)
        if result == OUT_OF_MEMORY and chosen.keeps_all and self.live.issuperset(chosen.left):
            self.wrong = "refused what it frees itself"
        if result == SUCCESS:
            self.live.update(chosen.left)
        else:
            self.live.difference_update(chosen.left)
        self.live.difference_update(chosen.frees)

    def launch_at_once(self) -> None:
        """Several, each from a thread and on a stream of its own; sometimes what one leaves is freed then."""
        count = min(len(self.graphs), self.random.choice((2, 3)))
        if count < 2:
            return
        chosen = self.random.sample(self.graphs, count)
        freed = [g.left[0] for g in chosen if g.left][:1] if self.flags else []
        self.live.difference_update(a for g in chosen for a in g.left + g.frees)
        context, barrier = ctypes.c_void_p(), threading.Barrier(count + len(freed))
        cuda.cuCtxGetCurrent(ctypes.byref(context))

        def one(number: int) -> None:
            cuda.cuCtxSetCurrent(context)
            barrier.wait()
            cuda.cuGraphLaunch(chosen[number].executable, self.streams[number % 3])

        def give(address: int) -> None:
            cuda.cuCtxSetCurrent(context)
            barrier.wait()
            put(address)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        threads += [threading.Thread(target=give, args=(address,)) for address in freed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def give_back(self) -> None:
        """What some graph has left, or never had."""
        if self.unclaimed:
            address = self.random.choice(self.unclaimed)
            self.live.discard(address)
            (put if self.random.random() < 0.5 else free)(address)

    def trim(self) -> None:
        """Of the device."""
        cuda.cuDeviceGraphMemTrim(0)

    def take(self) -> None:
        """Memory that is no graph's."""
        result, address = alloc(self.random.choice(SIZES_MIB))
        if result == SUCCESS:
            self.plain.append(address)

    def give(self) -> None:
        """The same back."""
        if self.plain:
            free(self.plain.pop())

    def destroy(self) -> None:
        """A graph whose memory nobody holds."""
        idle = [g for g in self.graphs if not g.left]
        if idle:
            chosen = self.random.choice(idle)
            self.graphs.remove(chosen)
            cuda.cuGraphExecDestroy(chosen.executable)
            cuda.cuGraphDestroy(chosen.made)

    def step(self) -> list[float]:
        """Do something; gives both counts when it is done."""
        what = self.random.choices(
            (self.build, self.capture, self.launch, self.launch_at_once, self.give_back,
             self.trim, self.take, self.give, self.destroy),
            (8 if len(self.graphs) < 8 else 0, 2 if len(self.graphs) < 8 else 0,
             30, 8, 12, 2, 2, 4, 1),
        )[0]  # fmt: skip
        self.trace.append(what.__name__)
        what()
        cuda.cuCtxSynchronize()
        return both()


def disagreement(seed: int, steps: int, *, auto_free: bool = False) -> str:
    """What was done up to where the two counts differ, or a launch was wrong; empty when neither is so."""
    tenant = Tenant(seed, auto_free=auto_free)
    for _ in range(steps):
        hook, gpu = tenant.step()
        if tenant.wrong:
            return f"seed {seed}: {tenant.wrong}, after {tenant.trace}"
        if hook != gpu:
            return f"seed {seed}: the hook says {hook}, the GPU {gpu}, after {tenant.trace}"
    return ""
