"""Deletes files of the hook that no container, no process and no agent wants any more."""

import time
from collections.abc import Callable

from agent import logs
from agent.domain.hook_files import HookFile, forgotten_hooks, hooks_of_containers, is_hook_name
from agent.errors import AgentError
from agent.ports import Caches, GrantLog, InstalledHooks
from agent.services.published import Pods

log = logs.get(__name__)

AFTER_S = 600.0  # many times the interval at which an agent confirms the file that it wants


class HookGc:
    """One look at all of the hook's files, deleting what may go. In doubt everything stays."""

    def __init__(
        self,
        hooks: InstalledHooks,
        caches: Caches,
        grant_log: GrantLog,
        pods: Pods,
        *,
        after_s: float = AFTER_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`after_s`: how long ago an agent must have wanted a file last."""
        self._hooks = hooks
        self._caches = caches
        self._grant_log = grant_log
        self._pods = pods
        self._after_s = after_s
        self._now_s = now_s

    def collect_once(self, own: str) -> int:
        """Delete what may go; give the number of files. `own` is what this agent gives out."""
        if not is_hook_name(own) or not self._pods.now().synced:
            return 0
        try:
            candidates = self._candidates(own)
        except AgentError as error:
            log.failing("old hook files not looked for", error=error)
            return 0
        log.recovered("old hook files not looked for")
        return sum(self._deleted(file) for file in candidates)

    def _candidates(self, own: str) -> list[HookFile]:
        # First the files: one that is made after this look is none of ours to judge.
        listing, now_s = self._hooks.listed(), self._now_s()
        unfinished = forgotten_hooks(
            listing.unfinished, own=own, named=(), now_s=now_s, after_s=self._after_s
        )
        named = hooks_of_containers(
            [directory.name for directory in self._caches.listed()],
            self._grant_log.records(),
            self._pods.now().pods,
        )
        if named is None:
            return unfinished
        forgotten = forgotten_hooks(
            listing.files,
            own=own,
            named=named | listing.linked,
            now_s=now_s,
            after_s=self._after_s,
        )
        mapped = self._hooks.mapped(forgotten) if forgotten else frozenset()
        if mapped is None:  # /proc tells too little: --host-proc, and the capability SYS_PTRACE
            return unfinished
        return unfinished + [file for file in forgotten if file.name not in mapped]

    def _deleted(self, file: HookFile) -> bool:
        try:
            self._hooks.delete(file)
        except AgentError as error:
            log.failing("hook file not deleted", about=file.name, error=error)
            return False
        log.recovered("hook file not deleted", about=file.name)
        log.info("hook file deleted", file=file.name)
        return True
