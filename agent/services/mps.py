"""Loop: an MPS daemon for each resource that is shared through one, with its limits in place.

A daemon that answers is used as it is found, also one that somebody else has started; limits are
set again whenever we have not seen it answer before. Nobody becomes a client before that. One that
is not wanted any more is ended, and its GPUs are everybody's again.
"""

from collections.abc import Container, Mapping

from agent import logs
from agent.domain.mps import MpsPlan, plan
from agent.domain.nvidia_devices import Offer
from agent.errors import NodeNotReady
from agent.ports import Mps
from agent.services.published import Inventory, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

EVERY_S = 5.0
LOOKING_S = 120.0
NOT_YET = "the MPS daemon of {} is not ready yet"


class MpsDaemons:
    """Looks after them. `problem` says why a resource cannot be given now."""

    name = "mps"

    def __init__(
        self, inventory: Inventory, offer: Offer, mps: Mps, *, every_s: float = EVERY_S
    ) -> None:
        self._inventory = inventory
        self._offer = offer
        self._mps = mps
        self._every_s = every_s
        self._set: dict[str, MpsPlan] = {}  # as each daemon was told last, while it answers
        self._problems = Published[Mapping[str, str]]({})

    def problem(self, resource: str) -> str:
        """Why nobody can become a client of this resource's daemon; empty: all can."""
        shared = any(resource == self._offer.replication.offered_as(one)
                     for one in self._offer.replication.resources)  # fmt: skip
        return self._problems.now().get(resource, NOT_YET.format(resource) if shared else "")

    def first_problem(self) -> str:
        """Of any resource; empty: there is none."""
        return next((why for why in self._problems.now().values() if why), "")

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._inventory.poke)
        while not life.stopping:
            version, inventory = self._inventory.read()
            life.pulse(LOOKING_S)
            if inventory.known:
                self.look_once()
            life.pulse(self._every_s)
            self._inventory.wait_for_change(version, self._every_s)

    def look_once(self) -> None:
        """Start what does not answer, tell what was not told."""
        inventory = self._inventory.now()
        obstacle = self._mps.obstacle()
        problems: dict[str, str] = {}
        wanted_now: set[str] = set()
        for resource, devices in self._offer.resources(inventory).items():
            wanted = plan(resource, devices, len(inventory.gpus))
            if wanted is not None:
                wanted_now.add(resource)
                problems[resource] = obstacle or self._ensured(wanted)
        self._retire_others(wanted_now)
        self._problems.publish(problems)

    def _retire_others(self, wanted: Container[str]) -> None:
        """Those of earlier settings: their GPUs would stay closed to whoever is no client."""
        for old in self._mps.started():
            if old.resource in wanted:
                continue
            try:
                self._mps.retire(old)
            except NodeNotReady as error:
                log.failing("mps daemon not retired", about=old.resource, error=error)
                continue
            self._set.pop(old.resource, None)
            log.info("mps daemon retired", resource=old.resource, gpus=",".join(old.uuids))

    def _ensured(self, wanted: MpsPlan) -> str:
        about = wanted.resource
        try:
            if not self._mps.alive(wanted):
                self._set.pop(about, None)
                self._mps.start(wanted)
                log.info("mps daemon started", resource=about, gpus=",".join(wanted.uuids))
            if self._set.get(about) != wanted:
                for command in wanted.commands:
                    self._mps.tell(wanted, command)
                self._set[about] = wanted
                log.info("mps limits set", resource=about, commands="; ".join(wanted.commands))
        except NodeNotReady as error:
            log.failing("mps daemon not ready", about=about, error=error)
            return str(error)
        log.recovered("mps daemon not ready", about=about)
        return ""
