"""Which annotations of our Node are ours, and how they are taken back when no agent runs any more.

The agent itself takes them back when it leaves (`Registrar.leave`); here is what both go by.
"""

import time
from collections.abc import Callable, Sequence

from agent.domain.dialect import HAMI, Dialect
from agent.domain.handshake import is_report
from agent.errors import AgentError, ClusterError
from agent.ports import Cluster

ASK_WITHIN_S = 10.0  # for each request; the API server may be restarting
# An agent repairs a removal within a second, unless it had to do so many times before.
LOOK_AGAIN_AFTER_S = 2.0


class StillWritten(AgentError):
    """What was removed came back: somebody else writes it."""


def own_keys(*, handshake: bool, dialect: Dialect = HAMI) -> tuple[str, ...]:
    """Keys that are ours, because one agent alone serves a node, whichever run has written them.

    The scheduler's lock and the other device plugins' annotations are not among them. `handshake`:
    whether we answer it; it is the scheduler's otherwise.
    """
    keys = (dialect.register, *dialect.further)
    return (*keys, dialect.handshake) if handshake else keys


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
