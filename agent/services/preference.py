"""GetPreferredAllocation: point kubelet at ids of the GPU that the scheduler has chosen.

Its answer changes nothing in what is granted, only whether kubelet's books tell the truth. So it
never fails: with nothing better to say it spreads the ids over the GPUs.
"""

from collections.abc import Sequence

from agent import logs
from agent.domain.matching import Turn
from agent.domain.preferred_ids import preferred_ids
from agent.errors import AgentError
from agent.services.turns import Turns

log = logs.get(__name__)


class Preference:
    """Chooses device ids for kubelet. Thread-safe."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def preferred(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        *,
        deadline_s: float,
    ) -> list[str]:
        """`size` ids, all of `must_include` among them; fewer if there are no more. Never raises.

        An error here would cost the pod its life: kubelet rejects it.
        """
        turn: Turn | None = None
        try:
            found = self._turns.find(size, None, deadline_s=deadline_s) if size > 0 else None
            turn = found if isinstance(found, Turn) else None
        except AgentError as error:
            lost = self._turns.forgotten(available, size)
            if lost is not None and set(must_include) <= set(lost):
                log.info("container forgotten by kubelet", ids=",".join(lost))
                return list(lost)
            log.failing("no preference", error=error)
        except Exception as error:  # noqa: BLE001 - see above
            log.error("preference failed", error=repr(error))
        wanted = [claim.uuid for claim in turn.claims] if turn else []
        ids = preferred_ids(available, must_include, size, wanted)
        if turn is not None:
            self._turns.prefer(tuple(sorted(ids)), turn)
        return ids
