"""How long a loop waits before it turns to the API server again."""

import random
from collections.abc import Callable

from agent.errors import ClusterUnavailable
from agent.supervisor import RestartPolicy

SPREAD_S = 5.0  # over which the nodes of a cluster come back to an API server that they all lost
QUIET_S = 30.0  # a turn that lasted this long without an error was a good one


class Retries:
    """Counts failures in a row; doubles the pause from 0.5 s to 30 s, with jitter.

    The jitter spreads a thousand agents that lost the same API server in the same moment.
    """

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self._policy = RestartPolicy(first_s=0.5, longest_s=30.0)
        self.in_a_row = 0

    def succeeded(self) -> None:
        """Something worked: the next failure is the first one."""
        self.in_a_row = 0

    def failed_s(self, error: Exception | None = None, *, lasted_s: float = 0.0) -> float:
        """Count a failure; give the pause, at least what the API server asks for (Retry-After).

        `lasted_s`: how long things had been good before; see QUIET_S.
        """
        if lasted_s >= QUIET_S:
            self.in_a_row = 0
        self.in_a_row += 1
        pause_s = self._policy.delay_s(min(self.in_a_row, 16), self._jitter())
        asked_s = error.retry_after_s if isinstance(error, ClusterUnavailable) else None
        return max(pause_s, (asked_s or 0.0) * (1.0 + 0.5 * self._jitter()))

    def lost_s(self) -> float:
        """The pause before what was lost together with all other nodes is asked for again.

        Longer than a failure of our own needs: a cluster's watches end in one moment when an API
        server does, and thousands must not come back in the next. What needs the API server
        meanwhile asks it directly.
        """
        return SPREAD_S * self._jitter()
