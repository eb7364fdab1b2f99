"""Runs under the hook: graphs made, launched in turn and at once, freed and trimmed at random.

Sizes, who frees what, and the order are drawn from a seed. At rest the hook's count and the simulated
GPU's must agree; how much the GPU held at most is the test's to look at.
"""

import ctypes
import random
import threading
from dataclasses import dataclass, field
from typing import Any

from cuda_calls import alloc, cuda, free
from memory_calls import (
    add_allocation,
    add_free,
    both,
    draw,
    graph,
    instantiate,
    new_stream,
    put,
)

SIZES_MIB = (3, 10, 20, 31, 33, 50, 70)
SUCCESS = 0


@dataclass
class Graph:
    """An executable graph, and the addresses that it leaves to the program."""

    made: Any
    executable: Any
    left: list[int] = field(default_factory=list)


class Tenant:
    """A program that is as odd as the driver allows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.streams = [None, new_stream(), new_stream()]
        self.graphs: list[Graph] = []
        self.unclaimed: list[int] = []  # left addresses that no graph frees by a node
        self.plain: list[int] = []
        self.trace: list[str] = []

    def build(self) -> None:
        """Nodes that allocate; some freed by the graph, and some that others have left."""
        made, last, left = graph(), None, []
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
            last, address = add_allocation(made, self.random.choice(SIZES_MIB), last)
            if self.random.random() < 0.5:
                last = add_free(made, address, last)
            else:
                left.append(address)
        others = [a for a in self.unclaimed if self.random.random() < 0.4]
        for address in others:
            self.unclaimed.remove(address)
            last = add_free(made, address, last)
        self.unclaimed += left
        self.graphs.append(Graph(made, instantiate(made), left))

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
        if self.unclaimed and self.random.random() < 0.5:
            put(self.unclaimed.pop(), stream)
        assert cuda.cuStreamEndCapture(stream, ctypes.byref(made)) == SUCCESS
        self.unclaimed += left
        self.graphs.append(Graph(made, instantiate(made), left))

    def launch(self) -> None:
        """One, on any stream, sometimes uploaded before."""
        if not self.graphs:
            return
        chosen = self.random.choice(self.graphs)
        stream = self.random.choice(self.streams)
        if self.random.random() < 0.1:
            cuda.cuGraphUpload(chosen.executable, stream)
        cuda.cuGraphLaunch(chosen.executable, stream)

    def launch_at_once(self) -> None:
        """Several, each from a thread and on a stream of its own."""
        count = min(len(self.graphs), self.random.choice((2, 3)))
        if count < 2:
            return
        chosen = self.random.sample(self.graphs, count)
        context, barrier = ctypes.c_void_p(), threading.Barrier(count)
        cuda.cuCtxGetCurrent(ctypes.byref(context))

        def one(number: int) -> None:
            cuda.cuCtxSetCurrent(context)
            barrier.wait()
            cuda.cuGraphLaunch(chosen[number].executable, self.streams[number % 3])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def give_back(self) -> None:
        """What some graph has left, or never had."""
        if self.unclaimed:
            address = self.random.choice(self.unclaimed)
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


def disagreement(seed: int, steps: int) -> str:
    """What was done up to where the two counts differ; empty when they never do."""
    tenant = Tenant(seed)
    for _ in range(steps):
        hook, gpu = tenant.step()
        if hook != gpu:
            return f"seed {seed}: the hook says {hook}, the GPU {gpu}, after {tenant.trace}"
    return ""
