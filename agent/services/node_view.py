"""The API server as one node sees it: snapshots that the watches feed, and our own writes.

What we write is put into the snapshots at once: kubelet asks for a pod's next container within
milliseconds, long before the watch brings our own change back.
"""

from collections.abc import Mapping

from agent.domain.dialect import LOCK
from agent.domain.nodelock import NodeLock, decode_lock
from agent.domain.pods import Node, Pod
from agent.errors import ClusterGone
from agent.ports import Cluster, Listed
from agent.services.published import OwnNode, Pods, PodTable, newest, newest_node


def _precedes(resource_version: str, listed: Listed) -> bool:
    """Whether a state of a pod was known before the list was made."""
    mine, theirs = resource_version, listed.resource_version
    return mine.isdecimal() and theirs.isdecimal() and int(mine) <= int(theirs)


def merged(table: PodTable, listed: Listed) -> tuple[Pod, ...]:
    """The pods of a list and of a table that may be older or younger than it, each once.

    Known pods come first, as they arrived. One that the list lacks is gone, unless the table had
    it from a later moment.
    """
    fresh = {pod.uid: pod for pod in listed.pods}
    known = [
        newest(fresh[uid], pod) if uid in fresh else pod
        for uid, pod in table.pods.items()
        if uid in fresh or not _precedes(pod.resource_version, listed)
    ]
    return (*known, *(pod for uid, pod in fresh.items() if uid not in table.pods))


class NodeView:
    """Reads from memory, writes through to the API server. Thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        node_name: str,
        pods: Pods,
        own_node: OwnNode,
        lock_key: str = LOCK,
    ) -> None:
        self._cluster = cluster
        self._lock_key = lock_key
        self.node_name = node_name
        self.pods = pods
        self.own_node = own_node

    def pod(self, uid: str) -> Pod | None:
        """A pod of this node as it is known."""
        return self.pods.now().pods.get(uid)

    def lock(self) -> NodeLock | None:
        """The scheduler's lock on this node as it is known."""
        node = self.own_node.now()
        return decode_lock(node.annotations.get(self._lock_key)) if node else None

    def missing(self) -> str:
        """Why no pod's claim can be found; empty: the pods of this node have been read."""
        if self.pods.now().synced:
            return ""
        return (
            "the pods of this node have not been read yet; if this lasts, check whether the agent "
            "may list pods: its log says what the API server answered"
        )

    # --- writes

    def patch_pod(
        self,
        pod: Pod,
        changes: Mapping[str, str | None],
        *,
        expected: Mapping[str, str],
        deadline_s: float | None,
    ) -> Pod:
        """As `Cluster.patch_pod`; the snapshot follows, also when the pod turns out to be gone."""
        try:
            patched = self._cluster.patch_pod(
                pod, changes, expected=expected, deadline_s=deadline_s
            )
        except ClusterGone:
            self.missed(pod.uid)
            raise
        # not `applied` alone: the watch may have told of its deletion meanwhile
        self.pods.update(lambda table: table.applied(patched) if pod.uid in table.pods else table)
        return patched

    def remove_lock(self, value: str, *, deadline_s: float | None) -> None:
        """Remove the lock if it still has this value. Raises ClusterConflict otherwise."""
        self.saw_node(
            self._cluster.remove_node_annotation(
                self._lock_key, expected=value, deadline_s=deadline_s
            )
        )

    # --- reads that cost a request

    def read_pods(self, *, deadline_s: float | None) -> tuple[Pod, ...]:
        """All pods of this node as the API server has them now.

        The snapshot is left alone: the watch could meanwhile have brought something younger.
        """
        listed = self._cluster.list_pods(deadline_s=deadline_s)
        return merged(self.pods.now(), listed)

    def read_node(self, *, deadline_s: float | None) -> None:
        """Bring the snapshot of our Node up to date."""
        self.saw_node(self._cluster.get_node(deadline_s=deadline_s))

    # --- what we saw before the watch did

    def saw_pod(self, pod: Pod) -> None:
        """Put a state of a pod into the snapshot, unless that has a younger one."""
        self.pods.update(lambda table: table.applied(pod))

    def missed(self, uid: str) -> None:
        """Take a pod out of the snapshot that the API server does not list any more."""
        self.pods.update(lambda table: table.without(uid))

    def saw_node(self, node: Node) -> None:
        """Put a state of our Node into the snapshot, unless that has a younger one."""
        self.own_node.update(lambda known: newest_node(known, node))
