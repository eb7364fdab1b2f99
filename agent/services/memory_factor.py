"""How many MiB a unit of `volcano.sh/vgpu-memory` is on this node, chosen once and kept.

People write amounts in units, so a unit must not change its size because a GPU is missing for a
while: what was chosen is remembered on disk, and grows only when it no longer works.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from agent import logs
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.volcano_units import FactorVerdict, judge_factor
from agent.errors import AgentError
from agent.services.published import Inventory

log = logs.get(__name__)


class FactorStore(Protocol):
    """Where the factor outlives the agent. Both raise NodeNotReady."""

    def load(self) -> int:
        """The factor that was saved last; 0: none was."""

    def save(self, factor: int) -> None:
        """Remember this one."""


class MemoryFactor:
    """Tells the factor to everybody. Thread-safe.

    Args:
        configured: the factor to use; 0: the smallest that works.
        form: of the ids, see `agent.domain.volcano_units`.
    """

    def __init__(
        self,
        inventory: Inventory,
        sharing: Sharing,
        *,
        configured: int,
        form: str,
        store: FactorStore,
        changed: Callable[[FactorVerdict], None] = lambda _: None,
    ) -> None:
        self._inventory = inventory
        self._sharing = sharing
        self._configured = configured
        self._form = form
        self._store = store
        self._changed = changed
        self._lock = threading.Lock()
        self._judged: GpuInventory | None = None
        self._chosen = 0  # 0: nothing was chosen yet
        self._saved: int | None = None  # None: not read yet

    def now(self) -> int:
        """The factor as it is; 1 while neither a setting nor the GPUs say anything."""
        inventory = self._inventory.now()
        with self._lock:
            if inventory is not self._judged and self._sharing.offered(inventory):
                self._judged = inventory
                self._judge(inventory)
            return self._chosen or self._configured or 1

    def _judge(self, inventory: GpuInventory) -> None:
        smallest = judge_factor(inventory, self._sharing, 0, self._form).factor
        factor = self._configured or max(smallest, self._chosen or self._load())
        if factor == self._chosen:
            return
        verdict = judge_factor(inventory, self._sharing, factor, self._form)
        log.info(
            "memory unit chosen",
            factor=factor,
            smallest=verdict.smallest,
            list_bytes=verdict.list_bytes,
            status_bytes=verdict.status_bytes,
            by="setting" if self._configured else "size of messages",
        )
        if self._chosen:
            log.warning("memory unit changed", before=self._chosen, factor=factor)
        self._chosen = factor
        self._changed(verdict)
        self._save(factor)

    def _load(self) -> int:
        if self._saved is None:
            try:
                self._saved = self._store.load()
            except AgentError as error:
                log.warning("memory unit not remembered", error=error)
                self._saved = 0
        return self._saved

    def _save(self, factor: int) -> None:
        if factor == self._saved:
            return
        try:
            self._store.save(factor)
        except AgentError as error:
            log.warning("memory unit not saved", error=error)
        else:
            self._saved = factor
