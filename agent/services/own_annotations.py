"""Which annotations of our Node are ours, and how they are taken back when no agent runs any more.

The agent itself takes them back when it leaves (`Registrar.leave`); here is what both go by.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from agent.domain.dialect import HAMI, Dialect
from agent.domain.handshake import is_question, is_report
from agent.domain.register import retired
from agent.errors import AgentError, ClusterError
from agent.ports import Cluster

ASK_WITHIN_S = 10.0  # for each request; the API server may be restarting
# An agent repairs a removal within a second, unless it had to do so many times before.
LOOK_AGAIN_AFTER_S = 2.0
# HAMi's scheduler looks every 15 s. When kubelet counts no vGPU for the first time it forgets the
# node and reads nothing, and the second look is the one.
READ_WITHIN_S = 40.0
READ_EVERY_S = 1.0


class StillWritten(AgentError):
    """What was removed came back: somebody else writes it."""


def own_keys(*, handshake: bool, dialect: Dialect = HAMI) -> tuple[str, ...]:
    """Keys that are ours, because one agent alone serves a node, whichever run has written them.

    The scheduler's lock and the other device plugins' annotations are not among them. `handshake`:
    whether we answer it; it is the scheduler's otherwise.
    """
    keys = (dialect.register, *dialect.further)
    return (*keys, dialect.handshake) if handshake else keys


def withdrawn(
    annotations: Mapping[str, str], *, handshake: bool, dialect: Dialect = HAMI
) -> dict[str, str | None]:
    """What to write on our Node for a scheduler that would go on with what it read; empty: nothing.

    HAMi's from 2.9 on overlooks a Node without the annotation and goes on with what it read last:
    for good, if that was healthy GPUs. So it is told that none is, and the handshake is taken
    away: then it reads at its next look, and stamps that again. One that has not stamped it has
    nothing to forget, or is 2.8, for whose look nobody can wait; and one that we answer forgets a
    node that answers no more.
    """
    register, stamp = annotations.get(dialect.register), annotations.get(dialect.handshake)
    told = retired(register or "")
    unread = is_question(stamp) or (stamp is None and told == register)
    if not dialect.remembers or handshake or not told or not unread:
        return {}
    return {dialect.register: told, dialect.handshake: None}


class OwnAnnotations:
    """Those of our Node, as the API server has them: found with a GET, removed with a PATCH.

    All methods raise ClusterError: ClusterGone when there is no such Node.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        handshake: bool,
        dialect: Dialect = HAMI,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._handshake = handshake
        self._dialect = dialect
        self._clock = clock
        self._pause = pause

    def found(self) -> tuple[str, ...]:
        """Keys of ours that the Node has."""
        annotations = self._cluster.get_node(deadline_s=self._soon_s()).annotations
        # An answer to it is a device plugin's even if the settings of this call do not say so.
        handshake = self._handshake or is_report(annotations.get(self._dialect.handshake))
        return tuple(
            key
            for key in own_keys(handshake=handshake, dialect=self._dialect)
            if key in annotations
        )

    def retire(self, waits: Callable[[], None] = lambda: None) -> bool:
        """Have the scheduler read that no GPU is healthy; False: it has not. See `withdrawn`.

        `waits` is called where that takes until the scheduler's next look.
        """
        there = self._cluster.get_node(deadline_s=self._soon_s()).annotations
        changes = withdrawn(there, handshake=self._handshake, dialect=self._dialect)
        if not changes:
            return True
        self._cluster.patch_node(changes, deadline_s=self._soon_s())
        waits()
        until_s = self._clock() + READ_WITHIN_S
        while self._clock() < until_s:
            self._pause(READ_EVERY_S)
            there = self._cluster.get_node(deadline_s=self._soon_s()).annotations
            if self._dialect.handshake in there:
                return True
        return False

    def remove(self, keys: Sequence[str]) -> None:
        """Remove these, and look a moment later whether they stay away.

        Raises StillWritten.
        """
        self._cluster.patch_node(dict.fromkeys(keys), deadline_s=self._soon_s())
        if self._dialect.register in keys:
            self._pause(LOOK_AGAIN_AFTER_S)
            self._look_again()

    def _look_again(self) -> None:
        try:
            node = self._cluster.get_node(deadline_s=self._soon_s())
        except ClusterError:
            return  # what was to be done is done
        if self._dialect.register in node.annotations:
            raise StillWritten(
                f"{self._dialect.register} was removed and is there again: an agent with another "
                "--state-dir, or another device plugin, serves this node and writes it; stop that "
                "first"
            )

    def _soon_s(self) -> float:
        return self._clock() + ASK_WITHIN_S
