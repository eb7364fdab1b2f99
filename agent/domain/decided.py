"""What a pod's annotation says was decided for it, as far as it can be true.

The scheduler writes it, but so can whoever may write the pod. Others are refused for what it says:
so it is believed of pods alone whose specification asks for vGPUs, which kubelet sees to, and of no
more vGPUs than that.
"""

from collections import Counter

from agent.domain.dialect import Dialect
from agent.domain.grants import Claim
from agent.domain.matching import owners
from agent.domain.pods import Pod
from agent.errors import MalformedAnnotation


def asked_vgpus(pod: Pod) -> int:
    """How many vGPUs its containers ask for together."""
    return sum(one.vgpus or int(one.listed) for one in pod.containers)


def claimed(pod: Pod, key: str, dialect: Dialect) -> tuple[Claim, ...]:
    """The claims in an annotation; none where a scheduler cannot have decided that. Total."""
    asked = asked_vgpus(pod)
    if not asked:
        return ()
    codec = dialect.codec
    try:
        slots = codec.pending(codec.decode(pod.annotations.get(key, "")))
    except MalformedAnnotation:
        return ()
    claims = tuple(claim for slot in slots.values() for claim in slot)
    # A negative amount would be room for others that there is not.
    impossible = any(claim.memory_mib < 0 or claim.core_percent < 0 for claim in claims)
    return () if impossible or len(claims) > asked else claims


def served_by_others(
    pod: Pod, node_name: str, dialect: Dialect
) -> tuple[tuple[str, tuple[Claim, ...]], ...]:
    """What the pod was given by another agent or plugin, if it has no grant of ours. Total.

    That is what the scheduler decided on and what is not waiting any more: for each container its
    kind and its claims, as kubelet starts them. Where the annotation does not tell whose they are,
    all is an app container's. One that has ended has nothing.

    While we serve the node nobody gets past kubelet without a grant: whoever has not got there has
    nothing yet.
    """
    if pod.finished or not pod.admitted or pod.annotations.get(dialect.node) != node_name:
        return ()
    decided = Counter(claimed(pod, dialect.decided, dialect))
    left = decided - Counter(claimed(pod, dialect.to_allocate, dialect))
    if not left:
        return ()
    slots = dialect.codec.decode(pod.annotations[dialect.decided])
    whose = owners(pod, len(slots), dialect.codec.pending(slots))
    if whose is None:
        return (("app", tuple(left.elements())),)
    served = []
    for container, claims in whose:
        has = Counter(claims) & left
        left -= has
        if container.name not in pod.ended:
            served.append((container.kind, tuple(has.elements())))
    return tuple(served)
