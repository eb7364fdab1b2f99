"""Whether the limits of a GPU's containers together are more than the GPU has.

Each limit holds by itself; if their sum is more than the card, somebody who keeps to its limit runs
out of memory. That is refused unless the node's memory scaling says that it is wanted.
"""

from collections.abc import Iterable, Mapping, Sequence

from agent.domain.gpu import Gpu, Sharing, scaled
from agent.domain.grants import Claim, GrantRecord
from agent.domain.limits_file import MIB
from agent.domain.pods import Pod


def offered_mib(gpu: Gpu, sharing: Sharing) -> int:
    """What all containers of the GPU may be promised; 0: nobody knows what it has."""
    total_mib = gpu.memory_mib if gpu.memory_mib is not None else sharing.preconfigured_memory_mib
    return scaled(total_mib, max(1.0, sharing.memory_scaling))


def promised_mib(claims: Iterable[Claim], uuid: str, offered: int) -> int:
    """What these claims promise of one GPU; a claim without a limit is all of it."""
    return sum(claim.memory_mib or offered for claim in claims if claim.uuid == uuid)


def allowed_mib(
    record: GrantRecord, uuid: str, offered: int, limits_bytes: Mapping[str, int]
) -> int:
    """What a container may use of one GPU: what it was granted, or more if it was raised since.

    One that was lowered gets back what it was granted when it likes. `limits_bytes`: as they are
    now, by uuid in small letters, 0 for none.
    """
    granted = promised_mib(record.claims, uuid, offered)
    now = limits_bytes.get(uuid.lower())
    return granted if now is None or not granted else max(granted, -(-now // MIB) or offered)


def at_once(amounts: Iterable[tuple[str, int]]) -> int:
    """The most that a pod's containers have at one time: kind and amount, as kubelet starts them.

    An init container runs beside the sidecars before it, and ends before the next one starts. HAMi
    after 2.10 promises the difference to others (pkg/device/initContainer.go).
    """
    running = most = 0
    for kind, amount in amounts:
        most = max(most, running + amount)
        running += 0 if kind == "init" else amount
    return most


def beside(pod: Pod, held: Sequence[tuple[GrantRecord, int]], container: str) -> int:
    """The most that a pod's other containers have while this one runs; "" for no container of it.

    `held`: what each one has, in one unit.
    """
    # As much as all others together, so that the most there is at one time is there with it.
    stand_in = sum(amount for record, amount in held if record.container != container)
    among = [(one, stand_in if one.container == container else amount) for one, amount in held]
    most = at_once(in_order(pod, among))
    return most - stand_in if any(one.container == container for one, _ in held) else most


def in_order(pod: Pod, held: Sequence[tuple[GrantRecord, int]]) -> list[tuple[str, int]]:
    """Kind and amount of a pod's containers as kubelet starts them; `held`: what each one has."""
    places = {one.name: place for place, one in enumerate(pod.containers)}
    last = len(places)  # who is not in the spec runs beside all others
    kinds = {one.name: one.kind for one in pod.containers}
    ordered = sorted(held, key=lambda one: places.get(one[0].container, last))
    return [(kinds.get(record.container, "app"), amount) for record, amount in ordered]


def holds(record: GrantRecord, pod: Pod, asking: tuple[str, str]) -> bool:
    """Whether a grant still counts when another container (pod uid, name) asks.

    An init container has ended before those after it start, which then use what it had.
    """
    if pod.finished or (record.pod_uid, record.container) == asking:
        return False
    kind = next((one.kind for one in pod.containers if one.name == record.container), "app")
    return not (kind == "init" and (record.pod_uid == asking[0] or record.container in pod.ended))


def too_much(gpu: Gpu, wanted: int, held: int, sharing: Sharing) -> str:
    """Why so many MiB cannot be promised as well, in words for the pod's owner; empty: they can."""
    offered = offered_mib(gpu, sharing)
    if not offered or wanted + held <= offered:
        return ""
    return (
        f"the scheduler has chosen {wanted} MiB on GPU {gpu.uuid}, of whose {offered} MiB other "
        f"containers have been promised {held} already: one of them would run out of memory "
        "although it keeps to its limit. The scheduler and this node disagree on what is in use; "
        "where more may be promised than there is, set --device-memory-scaling above 1 on the node"
    )
