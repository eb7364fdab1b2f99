"""Which resources kubelet is offered while the agent runs: known by the GPUs, not by the settings.

A profile of MIG devices is a resource of its own, and there may be new ones at any time. So there
are places for resources, each with a loop, and a resource takes the next free place when the first
device of it is seen. It keeps its place: a resource without devices stays one, with none.
"""

import threading
from collections.abc import Callable, Sequence

from agent import logs
from agent.domain.gpu import GpuInventory
from agent.services.plugin import Plugin
from agent.services.published import Inventory
from agent.supervisor import Lifeline

log = logs.get(__name__)

PULSE_S = 60.0
LOOK_S = 30.0


class ResourcePlaces:
    """Hands places to resources."""

    def __init__(
        self,
        inventory: Inventory,
        resources: Callable[[GpuInventory], Sequence[str]],
        made: Callable[[str], Plugin],
        count: int,
    ) -> None:
        """`resources` gives the names of those that have devices; `made` a plugin for one."""
        self._inventory = inventory
        self._resources = resources
        self._made = made
        self._taken: dict[str, Plugin] = {}
        self._lock = threading.Lock()
        self.places = [ResourcePlace(self, number, inventory) for number in range(count)]

    def plugins(self) -> Sequence[Plugin]:
        """Those of the resources there have been so far."""
        with self._lock:
            return tuple(self._taken.values())

    def plugin_of(self, number: int) -> Plugin | None:
        """Whose place it is; None: nobody's yet."""
        inventory = self._inventory.now()
        with self._lock:
            if inventory.known:
                self._take(self._resources(inventory))
            return next(iter(list(self._taken.values())[number : number + 1]), None)

    def _take(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._taken:
                continue
            if len(self._taken) == len(self.places):
                log.failing(
                    "resource not offered",
                    about=name,
                    error=f"there have been {len(self.places)} others since the agent started; "
                    "restart it",
                )
                continue
            log.info("resource offered", resource=name)
            self._taken[name] = self._made(name)


class ResourcePlace:
    """A loop that serves the resource whose place it is."""

    def __init__(self, places: ResourcePlaces, number: int, inventory: Inventory) -> None:
        self.name = f"kubelet-resource-{number}"
        self._places = places
        self._number = number
        self._inventory = inventory

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._inventory.poke)
        while not life.stopping:
            life.pulse(PULSE_S)
            version, _ = self._inventory.read()
            plugin = self._places.plugin_of(self._number)
            if plugin is not None:
                plugin.run(life)
                return
            self._inventory.wait_for_change(version, LOOK_S)
