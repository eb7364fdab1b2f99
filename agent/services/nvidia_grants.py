"""What was given to whom in mode nvidia, so that use can be told by pod.

Nothing depends on it: an answer to kubelet is the same without, and a disk that refuses holds
nobody up. Whose it is tells kubelet's books later (kubelet_pods.py).
"""

import secrets
import time
from collections.abc import Callable, Sequence

from agent import logs
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.identities import HOLDER, identity
from agent.domain.nvidia_devices import Device
from agent.errors import AgentError
from agent.ports import GrantLog

log = logs.get(__name__)

MODE = "nvidia"
VENDOR = "NVIDIA"


class NvidiaGrants:
    """Notes grants. Thread-safe as the log is."""

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

    def note(self, devices: Sequence[Device], grant: Grant) -> None:
        """Remember that a container has these devices, and that nobody had them before it.

        Kubelet gives a device away again when it is free, or to a later container of one pod.
        """
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
        taken = frozenset(ids)
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
