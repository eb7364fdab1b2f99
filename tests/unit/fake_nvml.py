"""A driver made of dictionaries: implements the Nvml port and fails on demand."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from agent.domain.gpu import Gpu, GpuEvent
from agent.domain.topology import GpuPair
from agent.errors import GpuLost, NvmlError

A = Gpu(uuid="GPU-a", index=0, name="NVIDIA A40", memory_mib=46068)
B = Gpu(uuid="GPU-b", index=1, name="NVIDIA A40", memory_mib=46068)


class FakeNvml:
    """GPUs, events and failures, set by the test."""

    def __init__(self, *gpus: Gpu) -> None:
        self.present = {gpu.uuid: gpu for gpu in gpus}
        self.events: deque[GpuEvent] = deque()
        self.lost: set[str] = set()
        self.failure: NvmlError | None = None
        self.topology_failure: NvmlError | None = None
        self.linked: tuple[GpuPair, ...] = ()
        self.opened = 0
        self.closed = 0
        self.questions = 1  # of a list of GPUs, and of one of pairs
        self.before_each_call: Callable[[], None] = lambda: None

    def _call(self) -> None:
        self.before_each_call()
        if self.failure:
            raise self.failure

    def open(self) -> None:
        self._call()
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def gpus(self, answered: Callable[[], None]) -> tuple[Gpu, ...]:
        for _ in range(self.questions):
            answered()
            self._call()
        return tuple(self.present.values())

    def pairs(self, answered: Callable[[], None]) -> tuple[GpuPair, ...]:
        for _ in range(self.questions):
            answered()
            self._call()
        if self.topology_failure:
            raise self.topology_failure
        return self.linked

    def wait_event(self, timeout_s: float, answered: Callable[[], None]) -> GpuEvent | None:
        assert timeout_s <= 5.0
        self._call()
        answered()
        return self.events.popleft() if self.events else None

    def probe(self, uuid: str) -> None:
        self._call()
        if uuid in self.lost:
            raise GpuLost("GPU is lost", code=15)

    def xid(self, uuid: str, code: int) -> None:
        self.events.append(GpuEvent(uuid=uuid, kind="xid", xid=code))

    def renumber(self, uuid: str, index: int) -> None:
        self.present[uuid] = replace(self.present[uuid], index=index)
