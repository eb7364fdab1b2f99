"""Loop: keep the node's register annotation true and answer the scheduler's handshake.

Nothing is read from the API server: what our Node says is known from the watch, and nothing is
written unless it differs from what it should say.
"""

import math
import random
import threading
import time
from collections.abc import Callable

from agent import logs
from agent.domain.dialect import HAMI, Dialect
from agent.domain.gpu import Sharing
from agent.domain.handshake import answer
from agent.domain.pods import Node
from agent.domain.register import SCORE, HamiRegister, NodeRegister, Scores, encode_scores
from agent.errors import ClusterError
from agent.ports import Cluster
from agent.services.own_annotations import own_keys, withdrawn
from agent.services.published import Inventory, OwnNode, newest_node
from agent.services.retries import Retries
from agent.supervisor import Lifeline

log = logs.get(__name__)

IDLE_S = 60.0  # pulse of a loop that has nothing to do
WRITE_PULSE_S = 30.0
FIRST_REWRITE_S, LONGEST_REWRITE_S = 1.0, 60.0
PEACE_S = 600.0  # so long after our last write nobody quarrels with us


class Registrar:
    """Loop: what the scheduler should know of this node's GPUs, and that we live.

    Args:
        form: `json`, `csv9` or `csv7`, see `agent.domain.register`.
        handshake: whether the scheduler's handshake is answered.
        scores: gives the pair scores of the GPUs; None: they are not published.
        register: how the GPUs are told, instead of in `form`.
        dialect: whose keys these are.
        count: called with "ok" or "failed" for each write.
    """

    name = "registrar"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        cluster: Cluster,
        inventory: Inventory,
        own_node: OwnNode,
        sharing: Sharing,
        *,
        form: str = "json",
        handshake: bool = False,
        scores: Callable[[], Scores] | None = None,
        register: NodeRegister | None = None,
        dialect: Dialect = HAMI,
        count: Callable[[str], None] = lambda _outcome: None,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._inventory = inventory
        self._own_node = own_node
        self._register = register or HamiRegister(sharing=sharing, form=form)
        self._dialect = dialect
        self._handshake = handshake
        self._scores = scores
        self._count = count
        self._retries = Retries(jitter)
        self._clock = clock
        self._now = now
        self._wake = threading.Event()
        self._missing = "the GPUs are not known yet"
        self._retry_at_s = 0.0
        self._answered_at_s = -math.inf
        self._written: dict[str, str | None] = {}  # our last words about the GPUs, by annotation
        self._written_at_s = -math.inf
        self._rewrites = 0  # how often in a row somebody undid it

    def run(self, life: Lifeline) -> None:
        undo = [self._inventory.listen(self._wake.set), self._own_node.listen(self._wake.set)]
        life.on_stop(self._wake.set)
        try:
            while not life.stopping:
                self._wake.clear()
                life.pulse(WRITE_PULSE_S)
                wait_s = min(IDLE_S, self.step_once())
                life.pulse(wait_s)
                self._wake.wait(wait_s)
        finally:
            for stop_listening in undo:
                stop_listening()

    def missing(self) -> str:
        """Why the scheduler does not know this node's GPUs as they are; empty: it does."""
        return self._missing

    def step_once(self) -> float:
        """Write what is due; give the seconds until something may be due again."""
        node = self._own_node.now()
        if not self._inventory.now().known:
            self._missing = "the GPUs are not known yet"
            return IDLE_S
        if node is None:
            self._missing = (
                "our Node object is not known yet; if this lasts, check --node-name and whether "
                "the agent may watch Nodes"
            )
            return IDLE_S
        changes, wait_s = self._registration(node)
        if not changes and not wait_s:
            self._missing = ""
        if self._handshake:
            changes_too, wait_too_s = self._answer(node)
            changes |= changes_too
            wait_s = min((s for s in (wait_s, wait_too_s) if s), default=0.0)
        pause_s = self._retry_at_s - self._clock()
        if changes and pause_s > 0:
            return pause_s
        if changes:
            return self._write(changes)
        return wait_s or IDLE_S

    # --- what is due ----------------------------------------------------------------------------

    def _registration(self, node: Node) -> tuple[dict[str, str | None], float]:
        """What has to be written about the GPUs, or in how many seconds."""
        inventory, key = self._inventory.now(), self._register.key
        further = self._register.further(inventory)
        changes: dict[str, str | None] = {
            name: text for name, text in further.items() if node.annotations.get(name) != text
        }
        found = node.annotations.get(key)
        if found is None or not self._register.same(found, inventory):
            changes[key] = self._register.text(inventory)
        if self._scores is not None:
            score = encode_scores(self._scores())
            if node.annotations.get(SCORE) != score:
                changes[SCORE] = score
        elif SCORE in self._dialect.further and SCORE in node.annotations:
            changes[SCORE] = None  # of an earlier run: stale scores mislead the scheduler
        if not changes:
            return {}, 0.0
        self._missing = "the annotation of our Node is being written"
        ours = {name: text for name, text in changes.items() if name != SCORE}
        undone = bool(ours) and ours.items() <= self._written.items()
        wait_s = self._undone_s() if undone else 0.0
        return ({}, wait_s) if wait_s > 0 else (changes, 0.0)

    def _undone_s(self) -> float:
        """Somebody undid what we wrote: how long to wait, lest two agents write against each other.

        A removal long after our write is repaired at once.
        """
        since_s = self._clock() - self._written_at_s
        if since_s > PEACE_S:
            self._rewrites = 0
        pause_s = min(LONGEST_REWRITE_S, FIRST_REWRITE_S * 2.0 ** min(self._rewrites, 16))
        return max(0.0, pause_s - since_s)

    def _answer(self, node: Node) -> tuple[dict[str, str | None], float]:
        due = answer(
            node.annotations.get(self._dialect.handshake),
            now_s=self._now(),
            since_last_s=self._clock() - self._answered_at_s,
            spacing_s=self._dialect.handshake_spacing_s,
            begins=self._dialect.handshake_begins,
        )
        if not due.text:
            return {}, 0.0
        return ({}, due.wait_s) if due.wait_s else ({self._dialect.handshake: due.text}, 0.0)

    # --- writing --------------------------------------------------------------------------------

    def _write(self, changes: dict[str, str | None]) -> float:
        try:
            node = self._cluster.patch_node(changes)
        except ClusterError as error:
            self._count("failed")
            log.failing("node not annotated", error=error)
            if self._register.key in changes or SCORE in changes:
                self._missing = f"the annotation of our Node cannot be written: {error}"
            pause_s = self._retries.failed_s(error)
            self._retry_at_s = self._clock() + pause_s
            return pause_s
        self._count("ok")
        self._retries.succeeded()
        log.recovered("node not annotated")
        self._remember(changes)
        self._own_node.update(lambda known: newest_node(known, node))
        return 0.0  # look again: what is due now?

    def _remember(self, changes: dict[str, str | None]) -> None:
        if self._dialect.handshake in changes:
            self._answered_at_s = self._clock()
            log.debug("handshake answered")
        keys = (self._register.key, *self._dialect.further)
        ours = {key: text for key, text in changes.items() if key in keys and key != SCORE}
        if not ours:
            return
        if ours.items() <= self._written.items():
            self._rewrites += 1
            log.failing(
                "register annotation undone",
                error="somebody else removes or changes it; is another device plugin running?",
            )
        else:
            self._rewrites = 0
        self._written |= ours
        self._written_at_s = self._clock()
        text = self._written.get(self._register.key) or ""
        log.info("gpus published", form=self._register.form, characters=len(text))

    # --- leaving --------------------------------------------------------------------------------

    def leave(self, *, within_s: float) -> bool:
        """Take our annotations back; tell whether that is done. Never raises.

        Those of an earlier run, too; see `own_keys`. Where the scheduler would go on with what it
        read last, the GPUs stay there as ill ones, see `withdrawn`: nobody here can wait until it
        has read them.
        """
        keys = own_keys(handshake=self._handshake, dialect=self._dialect)
        changes: dict[str, str | None] = dict.fromkeys(keys)
        if node := self._own_node.now():
            changes |= withdrawn(node.annotations, handshake=self._handshake, dialect=self._dialect)
        try:
            self._cluster.patch_node(changes, deadline_s=self._clock() + within_s)
        except ClusterError as error:
            log.error("annotations not removed", error=error)
            return False
        kept = [key for key, text in changes.items() if text is not None]
        gone = [key for key, text in changes.items() if text is None]
        log.info("annotations removed", keys=",".join(gone), told_unhealthy=",".join(kept))
        return True
