"""How much of a pod HAMi's scheduler after 2.10 counts: what its containers have at one time.

Before, it added up all containers, though init containers have ended when the others start.
Source: HAMi master of autumn 2026, pkg/device/initContainer.go and docs/develop.
"""

from agent.sim.api_client import Object
from agent.sim.scheduler_wire import PlacedClaim

Usage = tuple[int, int, int]  # MiB, percent of the cores, slots
NOTHING: Usage = (0, 0, 0)


def counted(pod: Object, slots: list[list[PlacedClaim]]) -> list[PlacedClaim]:
    """One claim for each GPU of a pod. `slots`: its containers', init containers first."""
    spec = pod.get("spec", {})
    init = spec.get("initContainers") or []
    kinds = ["sidecar" if is_sidecar(one) else "init" for one in init]
    over = _init_is_over(pod, [one["name"] for one in init if not is_sidecar(one)])
    running: dict[str, Usage] = {}
    most: dict[str, Usage] = {}
    for place, claims in enumerate(slots):
        ends = place < len(kinds) and kinds[place] == "init"
        for claim in claims:
            before = running.get(claim.uuid, NOTHING)
            now = _added(before, (claim.memory_mib, claim.core_percent, claim.slots))
            if not ends:
                running[claim.uuid] = now
            if not (ends and over):
                most[claim.uuid] = _larger(most.get(claim.uuid, NOTHING), now)
    return [
        PlacedClaim(uuid, memory_mib, core_percent, slots=slot_count)
        for uuid, (memory_mib, core_percent, slot_count) in most.items()
    ]


def is_sidecar(container: Object) -> bool:
    """Whether an init container runs on beside those after it."""
    return bool(container.get("restartPolicy") == "Always")


def _init_is_over(pod: Object, names: list[str]) -> bool:
    told = {
        one.get("name"): (one.get("state") or {}).get("terminated") or {}
        for one in pod.get("status", {}).get("initContainerStatuses") or []
    }
    return all(told.get(name, {}).get("exitCode") == 0 for name in names)


def _added(one: Usage, other: Usage) -> Usage:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _larger(one: Usage, other: Usage) -> Usage:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])
