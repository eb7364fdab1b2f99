"""Loop: what was given to whom in mode nvidia is written down, so that use can be told by pod.

Nothing depends on it: an answer to kubelet is the same without, and it is written after the answer,
so that a disk that is slow or refuses holds nobody up. Whose it is tells kubelet's books later
(kubelet_pods.py).
"""

import queue
import secrets
import time
from collections.abc import Callable, Sequence

from agent import logs
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.identities import HOLDER, identity
from agent.domain.nvidia_devices import Device
from agent.errors import AgentError
from agent.ports import GrantLog
from agent.supervisor import Lifeline

log = logs.get(__name__)

MODE = "nvidia"
VENDOR = "NVIDIA"
MOST_WAITING = 1000
WRITING_S = 600.0  # a disk may hang; a restart would meet the same
IDLE_S = 30.0


class NvidiaGrants:
    """Notes grants, in the order in which they were given."""

    name = "nvidia-grants"

    def __init__(
        self,
        grants: GrantLog,
        *,
        noted: Callable[[], None] = lambda: None,
        random: Callable[[], int] = lambda: secrets.randbits(64),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`noted` is called after each."""
        self._grants = grants
        self._noted = noted
        self._random = random
        self._now_s = now_s
        self._waiting: queue.Queue[GrantRecord | None] = queue.Queue(MOST_WAITING)

    def note(self, devices: Sequence[Device], grant: Grant) -> None:
        """Have it remembered that a container has these devices. Returns at once. Thread-safe."""
        ids = tuple(sorted(device.device_id for device in devices))
        uuids = dict.fromkeys(device.gpu.uuid for device in devices)
        name = identity(MODE, self._random())
        record = GrantRecord(
            pod_uid=name,
            namespace="",
            pod_name=name,
            container=HOLDER,
            device_ids=ids,
            claims=tuple(Claim(uuid, VENDOR, memory_mib=0, core_percent=0) for uuid in uuids),
            grant=grant,
            granted_at_s=self._now_s(),
        )
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            log.failing("grant not noted", error=f"{MOST_WAITING} others wait for the disk")

    def run(self, life: Lifeline) -> None:
        life.on_stop(lambda: self._waiting.put(None) if self._waiting.empty() else None)
        while not life.stopping:
            life.pulse(WRITING_S)
            self.write_once(IDLE_S)

    def write_once(self, wait_s: float = 0.0) -> bool:
        """Write down the next one, if there is one within `wait_s`; tell whether there was."""
        try:
            record = self._waiting.get(block=wait_s > 0, timeout=wait_s or None)
        except queue.Empty:
            return False
        if record is not None:
            self._write(record)
        return True

    def _write(self, record: GrantRecord) -> None:
        """And that nobody has its devices who had them before: kubelet gives what is free.

        Or what an earlier container of the same pod has done with.
        """
        taken = frozenset(record.device_ids)
        before = {r.pod_uid for r in self._grants.records() if taken.intersection(r.device_ids)}
        try:
            self._grants.forget(frozenset(before))
            self._grants.record(record)
            self._grants.answered(record)
        except AgentError as error:
            log.failing("grant not noted", error=error)
        else:
            log.recovered("grant not noted")
        self._noted()
