"""Loop: an MPS daemon for each resource that is shared through one, with its limits in place.

A daemon that answers is used as it is found, also one that somebody else has started; limits are
set again whenever we have not seen it answer before, or it answers as one that does not know them.
Nobody becomes a client before that. One that is not wanted any more is ended, and its GPUs are
everybody's again.
"""

from collections.abc import Collection, Mapping

from agent import logs
from agent.domain.mps import MpsPlan, commands_of_server, forgotten, orders, plan
from agent.domain.nvidia_config import NO_REPLICATION
from agent.domain.nvidia_devices import MPS, Offer
from agent.errors import NodeNotReady
from agent.ports import Mps
from agent.services.published import Inventory, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

EVERY_S = 5.0
LOOKING_S = 120.0
NOT_YET = "the MPS daemon of {} is not ready yet"
WITHOUT = (
    "the MPS daemon of {} was started without {}, which is new there, and cannot be started anew "
    "with it while it has clients: delete the pods of this node that have {}; the agent does the "
    "rest when the last of them is gone"
)


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
        shared = offer.replication if offer.strategy == MPS else NO_REPLICATION
        self._names = frozenset(map(shared.offered_as, shared.resources))
        self._set: dict[str, MpsPlan] = {}  # as each daemon was told last, while it answers
        self._problems = Published[Mapping[str, str]]({})
        self._looked = Published(False)

    def problem(self, resource: str) -> str:
        """Why nobody can become a client of this resource's daemon; empty: all can."""
        return self._problems.now().get(
            resource, NOT_YET.format(resource) if resource in self._names else ""
        )

    def tried(self, timeout_s: float) -> bool:
        """Wait until each daemon is ready, or could not be made so; False after `timeout_s`."""
        return self._looked.wait_until(bool, timeout_s)

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
        """Start what does not answer, tell what was not told, end what is not wanted."""
        plans = self._wanted()
        obstacle = self._mps.obstacle() if plans else ""
        self._problems.publish({one.resource: obstacle or self._ensured(one) for one in plans})
        self._looked.publish(True)
        self._retire_others(frozenset(one.resource for one in plans))

    def _wanted(self) -> list[MpsPlan]:
        """The daemons that there are to be."""
        if self._offer.strategy != MPS:
            return []
        inventory = self._inventory.now()
        made = (
            plan(resource, devices)
            for resource, devices in self._offer.resources(inventory).items()
        )
        return [one for one in made if one is not None]

    def _retire_others(self, planned: Collection[str]) -> None:
        """Those of earlier settings: their GPUs would stay closed to whoever is no client.

        One whose GPUs are only not seen just now has clients, and stays.
        """
        for old in self._mps.started():
            unseen = old.resource in self._names and not self._seen() >= set(old.uuids)
            if old.resource in planned or unseen:
                continue
            try:
                self._mps.retire(old)
            except NodeNotReady as error:
                log.failing("mps daemon not retired", about=old.resource, error=error)
                continue
            self._set.pop(old.resource, None)
            log.info("mps daemon retired", resource=old.resource, gpus=",".join(old.uuids))

    def _kept(self, wanted: MpsPlan) -> Collection[str] | None:
        """GPUs of a daemon that we have started; those that left its resource are opened first.

        None: it is somebody else's, or there is none. One that is only not seen just now stays.
        Raises NodeNotReady.
        """
        old = next((one for one in self._mps.started() if one.resource == wanted.resource), None)
        if old is None:
            return None
        left = [uuid for uuid in old.uuids if uuid in self._seen() and uuid not in wanted.uuids]
        if left:
            self._mps.release(wanted, left)
            log.info("mps gpus opened", resource=old.resource, gpus=",".join(left))
        return [uuid for uuid in old.uuids if uuid not in left]

    def _seen(self) -> set[str]:
        return {gpu.uuid for gpu in self._inventory.now().gpus}

    def _ended_for(self, new: Collection[str], wanted: MpsPlan) -> None:
        """End a daemon that was started without some of its GPUs. Raises NodeNotReady."""
        about, gpus = wanted.resource, ", ".join(new)
        if not self._mps.end_unused(wanted):
            raise NodeNotReady(WITHOUT.format(about, gpus, about))
        log.info("mps daemon ended", resource=about, error=f"it was started without {gpus}")

    def _limit(self, wanted: MpsPlan) -> None:
        """Set the limits of whoever becomes a client from now on. Raises NodeNotReady."""
        numbers = self._mps.numbers(wanted) or {
            gpu.uuid: gpu.index for gpu in self._inventory.now().gpus
        }  # somebody else's daemon, which sees what the driver sees
        told = orders(wanted, numbers)
        for order in told:
            self._mps.tell(wanted, order.command)
            if refusal := order.refusal(self._mps.tell(wanted, order.question)):
                raise NodeNotReady(f"the MPS daemon of {wanted.resource} {refusal}")
        for pid in self._mps.servers(wanted) or ():
            for command in commands_of_server(wanted, numbers, pid):
                self._mps.tell(wanted, command)
        commands = "; ".join(order.command for order in told)
        log.info("mps limits set", resource=wanted.resource, commands=commands)

    def _ensured(self, wanted: MpsPlan) -> str:
        about = wanted.resource
        try:
            kept = self._kept(wanted)
            numbers = self._mps.numbers(wanted)
            ours = kept is not None or numbers  # by its numbers, where its record is spoiled
            known = numbers if kept is None else kept
            new = [
                uuid for uuid in wanted.uuids if ours and not (uuid in known and uuid in numbers)
            ]
            answer = self._mps.answer(wanted)
            if new or not answer:  # nobody is given its pipe before its limits are set again
                self._set.pop(about, None)
                self._problems.update(lambda now: {**now, about: NOT_YET.format(about)})
                if answer:
                    self._ended_for(new, wanted)
                self._mps.start(wanted)
                log.info("mps daemon started", resource=about, gpus=",".join(wanted.uuids))
            if self._set.get(about) != wanted or forgotten(wanted, answer):
                self._limit(wanted)
                self._set[about] = wanted
        except NodeNotReady as error:
            log.failing("mps daemon not ready", about=about, error=error)
            return str(error)
        log.recovered("mps daemon not ready", about=about)
        return ""
