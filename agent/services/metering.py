"""Asks the driver who uses which GPU, in a thread of its own: one that hangs stops nobody else.

Nothing is asked of it unless somebody wants to know.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from agent import logs
from agent.domain.accounting import GpuUse
from agent.errors import NvmlError
from agent.ports import GpuMeter
from agent.services.published import Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

LOOKING_S = 600.0  # a driver that hangs is reported as such; a restart would meet the same
IDLE_S = 60.0
NOT_ASKED = "the driver has not answered yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """What the driver told when it was asked."""

    gpus: tuple[GpuUse, ...] = ()
    problem: str = NOT_ASKED  # why they are not known; empty: they are
    answers: int = 0  # how many questions were answered by then
    at_s: float = 0.0  # of the service's clock


class Metering:
    """The loop around `GpuMeter.look`."""

    name = "metering"

    def __init__(self, meter: GpuMeter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._meter = meter
        self._clock = clock
        self._asked = Published(0)
        self.looks: Published[GpuLook] = Published(GpuLook())

    def ask(self, *, within_s: float) -> GpuLook:
        """A fresh look, if the driver gives one in time; else the latest.

        A driver that still owes an answer is not waited for.
        """
        before, latest = self._asked.now(), self.looks.now()
        if latest.answers < before:
            return latest
        self._asked.publish(before + 1)
        self.looks.wait_until(lambda look: look.answers > before, within_s)
        return self.looks.now()

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._asked.poke)
        try:
            while not life.stopping:
                version, asked = self._asked.read()
                if self.looks.now().answers < asked:
                    life.pulse(LOOKING_S)
                    self.look_once(asked)
                life.pulse(IDLE_S)
                self._asked.wait_for_change(version, IDLE_S)
        finally:
            self._meter.close()

    def look_once(self, asked: int) -> GpuLook:
        """Ask the driver, as answer to this many questions; give what is published then."""
        try:
            gpus, problem = self._meter.look(), ""
        except NvmlError as error:
            log.failing("use of GPUs not read", error=error)
            gpus, problem = (), str(error)
        else:
            log.recovered("use of GPUs not read")
        look = GpuLook(gpus=gpus, problem=problem, answers=asked, at_s=self._clock())
        self.looks.publish(look)
        return look
