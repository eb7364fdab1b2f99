"""Holds a service back until this agent is the only one on the node."""

from collections.abc import Callable

from agent.services.published import Published
from agent.supervisor import Lifeline, Service


class Gate:
    """What has to be true, and done once, before the services behind it may act."""

    def __init__(self, may_act: Published[bool], on_open: Callable[[], None]) -> None:
        """`on_open` runs once, on the thread of whoever passes first, before anybody passes."""
        self._may_act = may_act
        self._on_open = on_open
        self._opened = Published(value=False)

    def wait(self, life: Lifeline) -> bool:
        """Wait until the gate opens; False when the agent stops first."""
        while not life.stopping:
            life.pulse(2.0)
            if self._may_act.wait_until(bool, 1.0):
                self._opened.update(self._open_once)
                return True
        return False

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
        if self._gate.wait(life):
            self._service.run(life)
