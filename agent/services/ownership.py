"""Loop: see whether somebody else hands out the GPUs that this agent shares, and tell.

A GPU that a container holds through another device plugin or a DRA driver gets no new vGPUs of ours
until it is free: two owners would promise the same memory twice. One that is only offered goes on
being shared, because an operator may be in the middle of a change; it is told all the same.
"""

from collections.abc import Callable, Collection, Mapping

from agent import logs
from agent.domain.gpu import GpuInventory
from agent.domain.ownership import (
    Rival,
    as_told,
    is_plugin_of_gpus,
    may_have_registered,
    neighbour_told,
    rivals,
    told,
    vgpu_of_ours,
    withheld,
)
from agent.errors import KubeletUnavailable
from agent.ports import ClusterEvent, NodeDevices
from agent.services.published import Inventory, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

LOOKING_S, WAIT_S = 30.0, 1.0
AGAIN_S = 2.0  # a kubelet that is just starting has no books yet


class Ownership:
    """Looks into kubelet's books now and again. `found` is what it saw last."""

    name = "ownership"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        books: NodeDevices,
        inventory: Inventory,
        own_resources: Collection[str] | Callable[[GpuInventory], Collection[str]],
        *,
        withhold: Callable[[Mapping[str, str]], None],
        own_form: Callable[[str, GpuInventory], bool] = vgpu_of_ours,
        expected: Callable[[], Mapping[str, int]] = dict,
        renew: Callable[[Collection[str]], None] = lambda _: None,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        every_s: float = 30.0,
    ) -> None:
        """`withhold` is told of every GPU that is held by others, and why, after each look.

        `own_form`: whether an id of our own resources can be one of ours. `expected`: how many of
        each kubelet should have to give; `renew` is told of those of which it has nothing any more,
        or what another plugin had, because that one had taken the name over and is gone.
        """
        self.found: Published[tuple[Rival, ...]] = Published(())
        self._books = books
        self._inventory = inventory
        self._own_resources = own_resources  # or what gives them, where GPUs decide
        self._withhold = withhold
        self._own_form = own_form
        self._post = post
        self._every_s = every_s
        self._expected = expected
        self._renew = renew
        self._neighbours: frozenset[str] = frozenset()
        self._listed: frozenset[str] = frozenset()  # resources that kubelet had something of
        self._absent: frozenset[str] = frozenset()  # and nothing at the last look
        self._stale: frozenset[str] = frozenset()  # and at the last look what nobody has
        self._renewed: frozenset[str] = frozenset()  # for that, and not as we told it since
        self._bystanders: frozenset[str] = frozenset()  # sockets, when all was last as we told it

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            life.pulse(LOOKING_S)
            if not self._inventory.wait_until(lambda now: bool(now.gpus), WAIT_S):
                continue  # the driver may take its time, and what is held must be known at once
            life.pause(self._every_s if self.look_once() else min(self._every_s, AGAIN_S))

    def look_once(self) -> bool:
        """Look, tell what is new; False: kubelet did not tell, and all stays as it was."""
        gpus = self._inventory.now()
        if not gpus.gpus:
            return False
        try:
            offered = self._books.offered()
            held = self._books.held()
            sockets = frozenset(self._books.other_plugins())
        except KubeletUnavailable as error:
            log.failing("owners unknown", error=error)
            return False
        log.recovered("owners unknown")
        own = self._own_resources(gpus) if callable(self._own_resources) else self._own_resources
        self._judge(
            rivals(held, offered, own_resources=own, gpus=gpus, own_form=self._own_form), gpus, own
        )
        neighbours = frozenset(name for name in sockets if is_plugin_of_gpus(name))
        for name in sorted(neighbours - self._neighbours):
            self._say(neighbour_told(name))
        self._neighbours = neighbours
        listed = frozenset(name for name, ids in offered.items() if ids)
        expected = self._expected()
        wrong = frozenset(
            name
            for name, count in expected.items()
            if not as_told(offered.get(name, ()), count, gpus, self._own_form)
        )
        all_listed = self._all_listed(frozenset(expected), listed)
        return self._none_stale(wrong, listed, sockets) and all_listed

    def _all_listed(self, expected: frozenset[str], offered: frozenset[str]) -> bool:
        """Have lost registrations renewed at the second look; False: look again soon."""
        absent = (self._listed & expected) - offered
        lost, self._absent = absent & self._absent, absent - self._absent
        self._listed = (self._listed | offered) - lost
        if lost:
            log.warning("kubelet has lost our devices", resources=",".join(sorted(lost)))
            self._renew(lost)
        return not self._absent

    def _none_stale(
        self, wrong: frozenset[str], listed: frozenset[str], sockets: frozenset[str]
    ) -> bool:
        """Have lists of plugins that are gone replaced at the second look; False: look again soon.

        From 1.37 on kubelet keeps us and whoever registered our name after us. When that one goes,
        it asks us again, but offers what the other one had until we send a list: pods are refused
        for devices that nobody has. While somebody is there who may have sent it, it stays.
        """
        if not wrong:
            self._bystanders = sockets
        theirs = bool(may_have_registered(sockets, self._bystanders))
        stale = frozenset() if theirs else (wrong & listed) - self._renewed
        lost, self._stale = stale & self._stale, stale - self._stale
        self._renewed = (self._renewed & wrong) | lost
        if lost:
            log.warning("kubelet lists what nobody has", resources=",".join(sorted(lost)))
            self._renew(lost)
        return not self._stale

    def _judge(
        self, now: tuple[Rival, ...], gpus: GpuInventory, own_resources: Collection[str]
    ) -> None:
        before = self.found.now()
        self.found.publish(now)
        for rival in now:
            if rival not in before:
                self._say(told(rival, gpus.gpu(rival.gpu), own_resources))
        for rival in before:
            if rival not in now:
                log.info(
                    "rival gone", gpu=rival.gpu, manager=rival.manager, holder=rival.holder or "-"
                )
        self._withhold(withheld(now))

    def _say(self, message: str) -> None:
        log.warning("gpu has two owners", problem=message)
        self._post(ClusterEvent(reason="GpuHasTwoOwners", message=message))
