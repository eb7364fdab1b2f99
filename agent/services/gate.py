"""Holds a service back until this agent is the only one on the node."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent.services.published import Published
from agent.supervisor import Lifeline, Service


class Gate:
    """What has to be true, and done once, before the services behind it may act."""

    def __init__(self, may_act: Published[bool], on_open: Callable[[], None]) -> None:
        """`on_open` runs once, on the thread of whoever passes first, before anybody passes."""
        self._may_act = may_act
        self._on_open = on_open
        self._opened = Published(value=False)
        self._inside = Published(0)  # services that are at the gate or behind it

    def wait(self, life: Lifeline) -> bool:
        """Wait until the gate opens; False when the agent stops first."""
        while not life.stopping:
            life.pulse(2.0)
            if self._may_act.wait_until(bool, 1.0):
                self._opened.update(self._open_once)
                return True
        return False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Whoever does is inside meanwhile."""
        self._inside.update(lambda count: count + 1)
        try:
            yield
        finally:
            self._inside.update(lambda count: count - 1)

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until nobody acts any more, all being about to stop; False after `timeout_s`."""
        return self._inside.wait_until(lambda count: count == 0, timeout_s)

    def _open_once(self, opened: bool) -> bool:
        if not opened:
            self._on_open()
        return True


class Gated:
    """A service behind a gate."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self.name = service.name
        self._service = service
        self._gate = gate

    def run(self, life: Lifeline) -> None:
        with self._gate.passing():
            if self._gate.wait(life):
                self._service.run(life)
