"""When a node is whole, for the tests of faults: registered, and serving pods correctly."""

from collections.abc import Mapping

from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import BIND_PHASE, LOCK, TO_ALLOCATE
from tests.faults.invariants import violations
from tests.waiting import eventually


def up(node: SimNode, vgpus: int) -> None:
    """Wait until kubelet and the scheduler's annotation have this many healthy vGPUs."""
    eventually(lambda: node.allocatable() == vgpus, within_s=60, what=f"{vgpus} vGPUs at kubelet")
    eventually(node.ready, within_s=60, what="/readyz")


def published(node: SimNode) -> int:
    """The vGPUs as the scheduler reads them, which kubelet writes later than it counts them."""
    status = node.client.get("nodes", node.name).get("status", {})
    return int(status.get("allocatable", {}).get(node.resource, 0))


def env_of(pod: RanPod, container: str = "main") -> Mapping[str, str]:
    assert pod.admitted.ok, pod.admitted.message
    return pod.admitted.containers[container].env


def got_its_claims(pod: RanPod, asks: list[Ask]) -> bool:
    """Whether each container's environment is what the scheduler decided for it."""
    order = [ask for ask in asks if ask.kind != "app"] + [ask for ask in asks if ask.kind == "app"]
    for ask, claims in zip(order, pod.claims, strict=True):
        if not ask.vgpus:
            continue
        env = env_of(pod, ask.name)
        if env["NVIDIA_VISIBLE_DEVICES"] != ",".join(claim.uuid for claim in claims):
            return False
        limits = [env[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] for number in range(len(claims))]
        if limits != [f"{claim.memory_mib}m" for claim in claims]:
            return False
        if env["CUDA_DEVICE_SM_LIMIT"] != str(claims[0].core_percent):
            return False
    return True


def finished(node: SimNode, pod: RanPod) -> bool:
    annotations = node.pod_annotations(pod.namespace, pod.name)
    return (
        LOCK not in node.annotations()
        and annotations[BIND_PHASE] == "success"
        and "NVIDIA" not in annotations[TO_ALLOCATE]
    )


def serves(node: SimNode, name: str = "afterwards", *, vgpus: int = 20) -> RanPod:
    """The node is whole: registered, a new pod gets exactly its share, and the books are in order.

    Gives that pod.
    """
    up(node, vgpus)
    eventually(
        lambda: published(node) == vgpus, within_s=60, what=f"{vgpus} vGPUs on the Node object"
    )
    asks = [Ask(memory_mib=700)]
    pod = node.run_pod(name, asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))
    eventually(
        lambda: not violations(node, [pod]), what="books in order (tests/faults/invariants.py)"
    )
    return pod
