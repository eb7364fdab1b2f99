"""A GPU shared in turns, and tenants that spend from budgets, in one process and in virtual time.

The budgets are the hook's own `throttle.c`; what launches cost is known exactly here, so this judges
the arithmetic of shares alone. The whole hook is judged on the simulated driver (test_share.py).
"""

import ctypes
import math
import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from built_hook import ROOT, compiler

MS = 1_000_000
SECOND = 1000 * MS
SLICE_NS = 2 * MS


class Share(ctypes.Structure):
    """`struct share` of throttle.h."""

    _fields_ = [("budget_ns", ctypes.c_int64)] + [
        (name, ctypes.c_uint64)
        for name in (
            "refilled_at_ns",
            "charged_ns",
            "throttled_ns",
            "launches",
            "waits",
            "contended_at_ns",
            "overlong_at_ns",
        )
    ]
    _fields_ += [("of_others", ctypes.c_uint64 * 4), ("least_had", ctypes.c_uint64)]
    _fields_ += [
        (name, ctypes.c_uint64)
        for name in ("caught_up_at_ns", "waits_at_ns", "let_out_at_ns", "waited_until_ns")
    ]
    _fields_ += [("ended_at_ns", ctypes.c_uint64 * 4), ("met", ctypes.c_int64)]
    _fields_ += [("waited_since_ns", ctypes.c_uint64)]


class Turn(ctypes.Structure):
    """`struct turn`, of a process or a thread."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("had_ns", "told", "idle_at_ns")]


class Turns(ctypes.Structure):
    """`struct turns`."""

    _fields_ = [
        ("least_had", ctypes.c_uint64),
        ("least_cost_ns", ctypes.c_int64),
        ("whose", ctypes.c_uint64 * 64),
        ("of", Turn * 64),
    ]


def load(directory: Path) -> ctypes.CDLL:
    """throttle.c, residency.c and past.c with their functions visible."""
    path = directory / "share.so"
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, "-shared", "throttle.c", "residency.c",
         "past.c", "-o", str(path)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    library = ctypes.CDLL(str(path))
    share = ctypes.POINTER(Share)
    library.share_refill.argtypes = [share, ctypes.c_uint64, ctypes.c_uint32]
    library.share_contended.argtypes = [share, ctypes.c_uint64]
    library.share_contended.restype = ctypes.c_bool
    library.share_held_up.argtypes = [share, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
    library.share_take.argtypes = [share, ctypes.c_int64, ctypes.c_int64]
    library.share_take.restype = ctypes.c_int64
    library.share_correct.argtypes = [share, ctypes.c_int64]
    turn = ctypes.POINTER(Turn)
    word = ctypes.POINTER(ctypes.c_uint64)
    library.share_is_anothers_turn.argtypes = [share, word, turn, ctypes.c_uint64, ctypes.c_uint32]
    library.share_is_anothers_turn.restype = ctypes.c_bool
    library.share_tell_turn.argtypes = [
        share, word, turn, ctypes.c_uint64, ctypes.c_uint32,
    ]  # fmt: skip
    library.share_tell_turn.restype = None
    library.share_turn_of.argtypes = [
        ctypes.POINTER(Turns), ctypes.c_uint64, ctypes.c_uint64,
    ]  # fmt: skip
    library.share_turn_of.restype = ctypes.c_uint
    library.share_wait_ns.argtypes = [share, ctypes.c_uint32]
    library.share_wait_ns.restype = ctypes.c_uint64
    library.share_debt_ns.argtypes = [share, ctypes.c_uint32]
    library.share_debt_ns.restype = ctypes.c_uint64
    return library


class Gpu:
    """Tenants take turns; who has nothing to do is passed over."""

    def __init__(self, tenants: int) -> None:
        self.queues: list[deque[float]] = [deque() for _ in range(tenants)]
        self.done_ns = [0.0] * tenants
        self.now_ns = 0.0
        self._turn, self._slice_left = 0, float(SLICE_NS)

    def submit(self, tenant: int, ns: float) -> None:
        """Queue a kernel."""
        self.queues[tenant].append(ns)

    def contended(self, tenant: int) -> bool:
        """Whether others have work while this tenant has."""
        return any(queue for index, queue in enumerate(self.queues) if index != tenant)

    def advance(self, until_ns: float) -> None:
        """Work until then, or until a queue has run empty."""
        while self.now_ns < until_ns:
            if not any(self.queues):
                self.now_ns = until_ns
                return
            if not self.queues[self._turn] or self._slice_left <= 0:
                self._pass_turn()
            queue = self.queues[self._turn]
            alone = not self.contended(self._turn)
            room = until_ns - self.now_ns
            step = min(queue[0], room) if alone else min(queue[0], room, self._slice_left)
            self.now_ns += step
            self._slice_left -= 0 if alone else step
            self.done_ns[self._turn] += step
            queue[0] -= step
            if queue[0] <= 1e-6:
                queue.popleft()
                if not queue:
                    return

    def _pass_turn(self) -> None:
        count = len(self.queues)
        self._turn = next(
            place
            for place in ((self._turn + step) % count for step in range(1, count + 1))
            if self.queues[place]
        )
        self._slice_left = float(SLICE_NS)


@dataclass
class Tenant:
    """A program that launches as fast as its share lets it; `depth` launches may be pending."""

    permille: int
    kernels: Iterator[float]
    depth: float = math.inf  # 1: it waits for each launch
    asleep: Callable[[float], bool] = lambda _: False  # idle by itself at this time
    limited: bool = True
    share: Share = field(default_factory=Share)
    wake_ns: float = 0.0
    tokens_ns: float = 0.0
    next_ns: float = 0.0


def run(
    library: ctypes.CDLL, tenants: list[Tenant], until_ns: float, gpu: Gpu | None = None
) -> Gpu:
    """Let them all run; gives the GPU, which knows how long it worked for whom."""
    gpu = gpu or Gpu(len(tenants))
    while gpu.now_ns < until_ns:
        for index, tenant in enumerate(tenants):
            if tenant.wake_ns <= gpu.now_ns:
                _launch(library, gpu, index, tenant)
        gpu.advance(min(until_ns, *(t.wake_ns for t in tenants), gpu.now_ns + SLICE_NS))
    return gpu


def _launch(library: ctypes.CDLL, gpu: Gpu, index: int, tenant: Tenant) -> None:
    now = int(gpu.now_ns) + SECOND  # a time of 0 is none
    queue = gpu.queues[index]
    if tenant.asleep(gpu.now_ns):
        tenant.wake_ns = gpu.now_ns + MS
        return
    while len(queue) < tenant.depth and sum(queue) < 400 * MS:
        tenant.next_ns = tenant.next_ns or next(tenant.kernels)
        if tenant.limited and tenant.tokens_ns < tenant.next_ns:
            if queue and gpu.contended(index):
                tenant.share.contended_at_ns = now
            library.share_refill(tenant.share, now, tenant.permille)
            taken = library.share_take(tenant.share, int(tenant.next_ns), 700_000)
            if not taken:
                wait = library.share_wait_ns(tenant.share, tenant.permille)
                assert MS <= wait <= 10 * MS
                tenant.wake_ns = gpu.now_ns + wait
                return
            tenant.tokens_ns += taken
        tenant.tokens_ns -= tenant.next_ns
        gpu.submit(index, tenant.next_ns)
        tenant.next_ns = 0.0
    tenant.wake_ns = gpu.now_ns + (MS if len(queue) == tenant.depth == math.inf else 200_000)


def kernels_of(low_us: float, high_us: float, seed: int = 1) -> Iterator[float]:
    """Durations in ns, every magnitude between the two as likely as the others."""
    source = random.Random(seed)  # noqa: S311 - repeatable durations
    while True:
        yield math.exp(source.uniform(math.log(low_us), math.log(high_us))) * 1000
