"""Deletes the cache directories of pods that are gone, and forgets their grants."""

import time
from collections.abc import Callable

from agent import logs
from agent.domain.retention import expired_directories, expired_records
from agent.errors import AgentError
from agent.ports import Caches, GrantLog
from agent.services.published import Pods
from agent.supervisor import Lifeline

log = logs.get(__name__)

DELETING_S = 60.0  # a directory may hold many files


class CacheGc:
    """Loop: look at all directories at the start and then now and again."""

    name = "cache-gc"

    def __init__(
        self,
        caches: Caches,
        grant_log: GrantLog,
        pods: Pods,
        *,
        after_s: float = 300.0,
        every_s: float = 30.0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`after_s`: age of the last change from which a directory without a pod is deleted."""
        self._caches = caches
        self._grant_log = grant_log
        self._pods = pods
        self._after_s = after_s
        self._every_s = every_s
        self._now_s = now_s

    def run(self, life: Lifeline) -> None:
        while not self._pods.now().synced and life.pause(0.5):
            pass
        while not life.stopping:
            self.collect_once(life)
            life.pause(self._every_s)

    def collect_once(self, life: Lifeline | None = None) -> int:
        """Delete what may go; give the number of directories. Nothing before the pods are known."""
        table = self._pods.now()
        if not table.synced:
            return 0
        now_s, deleted = self._now_s(), 0
        for name in expired_directories(
            self._listed(), table.pods.keys(), now_s=now_s, after_s=self._after_s
        ):
            if life is not None:
                if life.stopping:
                    return deleted
                life.pulse(DELETING_S)
            deleted += self._deleted(name)
        self._grant_log.tidy(table.pods.keys(), now_s=now_s)
        gone = expired_records(
            self._grant_log.records(), table.pods.keys(), now_s=now_s, after_s=self._after_s
        )
        if gone:
            self._grant_log.forget(gone)
        return deleted

    def _listed(self) -> list[tuple[str, float]]:
        try:
            listed = self._caches.listed()
        except AgentError as error:
            log.failing("cache directories not listed", error=error)
            return []
        log.recovered("cache directories not listed")
        return [(directory.name, directory.changed_at_s) for directory in listed]

    def _deleted(self, name: str) -> bool:
        try:
            self._caches.discard(name)
        except AgentError as error:
            log.failing("cache directory not deleted", about=name, error=error)
            return False
        log.recovered("cache directory not deleted", about=name)
        log.info("cache directory deleted", directory=name)
        return True
