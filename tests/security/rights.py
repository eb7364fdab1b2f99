"""What the manifests allow the agent's account, and what is missed without each right of it.

`manifest_rights` reads the manifests; MISSED says it of each right in words, and tests/security/
test_rights.py takes that right away and looks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from manifests import BASE, COMPONENTS, OVERLAYS, only, plain

Right = tuple[str, str]  # verb, resource
EVICT: Right = ("create", "pods/eviction")


@dataclass(frozen=True, slots=True)
class Missed:
    """What does not happen without a right, and what does all the same."""

    missed: str
    still: str
    test: str = "test_without_one_of_its_rights_something_is_missed"


LOST = "test_without_the_right_to_read_a_lost_answer_stays_unclear"
MISSED: Mapping[Right, Missed] = {
    ("get", "nodes"): Missed(
        "`uninstall` finds nothing of the agent's on the Node and says why; what it wrote stays. "
        "A lock whose removal had no answer is known to be gone by the watch alone",
        "the node is ready, pods are served",
        LOST,
    ),
    ("watch", "nodes"): Missed(
        "changes of the Node are not followed: it is read every 15 s",
        "the node is ready, pods are served",
    ),
    ("patch", "nodes"): Missed(
        "the scheduler is told of no GPU, so it places no pod; `/readyz` says why",
        "kubelet has the vGPUs",
    ),
    ("get", "pods"): Missed(
        "a pod is not started when the answer to the erasing of its claim was lost; the next one is",
        "the node is ready, pods are served whose answers arrive",
        LOST,
    ),
    ("list", "pods"): Missed(
        "no pod is known: none is started; `/readyz` says why",
        "kubelet and the scheduler have the vGPUs",
    ),
    ("watch", "pods"): Missed(
        "pods are not followed: each new one costs a list of the node's pods and a read of the Node",
        "the node is ready, pods are served",
    ),
    ("patch", "pods"): Missed(
        "no claim is erased, so no pod is started; the pod's status says that the API server "
        "answered 403; the scheduler's lock is freed",
        "the node is ready",
    ),
    ("create", "events"): Missed(
        "no Event tells that a GPU has failed",
        "its vGPUs are withdrawn; the other GPU's pods are served",
    ),
    EVICT: Missed(
        "who takes a GPU past its grant is not evicted, and no Event says that it was",
        "that it was found is told",
        "test_without_the_right_to_evict_who_takes_a_gpu_stays",
    ),
}


def of_role(manifests: list[dict[str, Any]]) -> Iterator[Right]:
    """Verb and resource, as a ClusterRole gives them."""
    return _of_rules(only("ClusterRole", manifests)["rules"])


def _of_rules(rules: list[dict[str, Any]]) -> Iterator[Right]:
    for rule in rules:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield verb, resource


def rights() -> frozenset[Right]:
    """Those of the base."""
    return frozenset(of_role(plain()))


def _after(step: Mapping[str, Any], rights: frozenset[Right] | None) -> frozenset[Right] | None:
    if (step["op"], step["path"]) == ("replace", "/rules"):
        assert set(_of_rules(step["value"])) <= set(of_role(plain())), step
        return rights if step["value"] else None
    assert (step["op"], step["path"]) == ("add", "/rules/-"), step
    return (rights or frozenset()) | set(_of_rules([step["value"]]))


def changes() -> Mapping[Path, frozenset[Right] | None]:
    """Component or overlay -> what it adds to the rights that it leaves; None: it leaves none.

    From the patches of its own kustomization; one that is not understood is an error.
    """
    found: dict[Path, frozenset[Right] | None] = {BASE: frozenset()}
    for folder in (*COMPONENTS, *OVERLAYS):
        found[folder] = frozenset()
        chosen = yaml.safe_load((folder / "kustomization.yaml").read_text())
        for patch in chosen.get("patches", ()):
            if patch.get("target", {}).get("kind") != "ClusterRole":
                continue
            for step in yaml.safe_load(patch["patch"]):
                found[folder] = _after(step, found[folder])
    return found


def of_nvidia() -> frozenset[Right]:
    """Those of overlays/nvidia, which replaces the base's."""
    [folder] = [one for one in OVERLAYS if one.name == "nvidia"]
    chosen = yaml.safe_load((folder / "kustomization.yaml").read_text())
    patches = [one for one in chosen["patches"] if "target" in one]
    steps = yaml.safe_load(patches[0]["patch"]) if patches else []
    return frozenset(right for step in steps for right in _of_rules(step["value"])) or rights()
