"""The lock by which the scheduler says whose pod this node is being prepared for.

Value of the node annotation: `<RFC 3339>,<namespace>,<pod name>`; before HAMi 2.5 the time alone.
The owner is told by the exact end of the value: a mere "contains" would let web-1 free the lock of
web-10, as HAMi 2.5 to 2.7.0 did (pkg/util/nodelock).
"""

from dataclasses import dataclass
from datetime import datetime

from agent.domain.pods import Pod

PARTS = 3
MAX_CHARS = 1_024  # a time, a namespace (63) and a name (253) are far shorter
CLOCK_SLACK_S = 5  # the lock is written just before the pod's bind time, by the same clock


@dataclass(frozen=True, slots=True)
class NodeLock:
    """The lock as it is written; a legacy one names no pod."""

    value: str
    taken_at_s: float | None = None  # unix time; None: not a time
    namespace: str = ""
    name: str = ""

    @property
    def legacy(self) -> bool:
        """Only a time: nobody can tell whose it is, anybody may remove it."""
        return not self.name and self.taken_at_s is not None

    def names(self, pod: Pod) -> bool:
        """Whether it is this pod's lock, going by namespace and name."""
        return bool(self.name) and (self.namespace, self.name) == (pod.namespace, pod.name)


def _unix_time(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return moment.timestamp() if moment.tzinfo else None


def decode_lock(value: str | None) -> NodeLock | None:
    """Read the annotation's value; None without one. Total: an unreadable value names nobody."""
    if not value:
        return None
    if len(value) > MAX_CHARS:
        return NodeLock(value)
    parts = value.split(",")
    if len(parts) == 1:
        return NodeLock(value, _unix_time(value))
    if len(parts) != PARTS or not all(parts):
        return NodeLock(value)
    return NodeLock(value, _unix_time(parts[0]), parts[1], parts[2])
