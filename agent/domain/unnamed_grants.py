"""Which grants nobody can hold any more of which kubelet's API never said whose they are.

Only the checkpoint speaks of those (see `kubelet_books.doubtful`), and kubelets from 1.22 to 1.31
leave in it whom they admitted last until they admit another pod, even when it is long gone and the
file is written anew. Source: Kubernetes, cm/devicemanager, pendingAdmissionPod; it was seen with
1.22.17. But while a pod lives its name is in every list of kubelet's, with devices or without: a
grant may be of one of the pods that were new when it was made and are not known to be others, and
when none of those is listed any more, its pod is gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

PodName: TypeAlias = tuple[str, str]  # namespace, name

# A pod is listed before its containers are given devices: so long at most, with Allocates that are
# slow for those before it. Who was listed earlier has nothing to do with the grant.
BEFORE_S = 60.0
# A kubelet that has just started lists nobody, and then some before others.
ABSENT_S = 30.0


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A grant that is not named."""

    grant: str
    made_s: float  # when
    not_of: frozenset[PodName]  # pods that are known to have another uid than the grant's


class UnnamedGrants:
    """What the lists so far say. Used by one thread; all times are of one monotonic clock."""

    def __init__(self) -> None:
        self._since_s: dict[PodName, float] = {}  # when it was listed first
        self._absent_since_s: dict[PodName, float] = {}
        self._may_be: dict[str, frozenset[PodName]] = {}  # by grant: whose it may be

    def gone(
        self, pods: frozenset[PodName], unnamed: Sequence[Unnamed], now_s: float
    ) -> frozenset[str]:
        """Those of the grants whose pod is not there any more, by kubelet's list of now.

        It is if it comes back: a kubelet that has started without its API server lists static pods.
        """
        self._note(pods, now_s)
        there = frozenset(self._since_s)
        self._may_be = {
            one.grant: self._may_be.get(one.grant, self._new_at(one.made_s)) for one in unnamed
        }
        return frozenset(
            one.grant for one in unnamed if not (self._may_be[one.grant] & there) - one.not_of
        )

    def _note(self, pods: frozenset[PodName], now_s: float) -> None:
        absent = self._since_s.keys() - pods
        self._absent_since_s = {pod: self._absent_since_s.get(pod, now_s) for pod in absent}
        for pod, since_s in self._absent_since_s.items():
            if now_s - since_s >= ABSENT_S:
                del self._since_s[pod]
        for pod in pods:
            self._since_s.setdefault(pod, now_s)

    def _new_at(self, made_s: float) -> frozenset[PodName]:
        """Of an agent that has just started all count: it has not seen who was there before."""
        return frozenset(
            pod for pod, since_s in self._since_s.items() if since_s >= made_s - BEFORE_S
        )
