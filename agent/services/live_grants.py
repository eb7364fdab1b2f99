"""Grants whose pods may have processes: what the loops that watch containers look at."""

from agent.domain.grants import GrantRecord
from agent.ports import GrantLog
from agent.services.published import Pods


def live_records(grants: GrantLog, pods: Pods) -> list[GrantRecord]:
    """Those of pods that are there and not finished; all, while the pods are not known."""
    records, table = grants.records(), pods.now()
    if not table.synced:
        return list(records)
    return [
        record
        for record in records
        if (pod := table.pods.get(record.pod_uid)) is not None and not pod.finished
    ]
