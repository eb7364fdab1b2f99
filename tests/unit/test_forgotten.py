"""A container that kubelet has lost from its books gets its old ids, if it can be told which it is."""

import pytest

from agent.domain.choice import Evidence, forgotten
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.pods import Container, Pod

ALL = [f"GPU-a-{slot}" for slot in range(4)]


def pod(uid: str, *, phase: str = "Running", kind: str = "app") -> Pod:
    return Pod(
        namespace="team", name=uid, uid=uid, node_name="n", phase=phase,
        containers=(Container(name="main", kind=kind, vgpus=1),),
    )  # fmt: skip


def record(uid: str, *ids: str) -> GrantRecord:
    return GrantRecord(
        pod_uid=uid, namespace="team", pod_name=uid, container="main", device_ids=ids,
        claims=(Claim("GPU-a", "NVIDIA", 100, 0),), grant=Grant(), granted_at_s=1.0, answered=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "records", "available", "vgpus", "ids"),
    [
        pytest.param((pod("a"),), (record("a", "GPU-a-1"),), ALL, 1, ("GPU-a-1",), id="the only one"),
        pytest.param((pod("a"),), (record("a", "GPU-a-1"),), ["GPU-a-0"], 1, None, id="kubelet still knows it"),
        pytest.param((pod("a"),), (record("a", "GPU-a-1"),), ALL, 2, None, id="another number of vGPUs"),
        pytest.param((pod("a"), pod("b")), (record("a", "GPU-a-1"), record("b", "GPU-a-2")), ALL, 1, None, id="two: nobody can tell"),
        pytest.param((pod("a"), pod("b")), (record("a", "GPU-a-1"), record("b", "GPU-a-2")), ["GPU-a-2"], 1, ("GPU-a-2",), id="two, one forgotten"),
        pytest.param((pod("a", phase="Failed"),), (record("a", "GPU-a-1"),), ALL, 1, None, id="its pod has ended"),
        pytest.param((), (record("a", "GPU-a-1"),), ALL, 1, None, id="its pod is gone"),
        pytest.param((pod("a", kind="init"),), (record("a", "GPU-a-1"),), ALL, 1, None, id="an init container is over"),
        pytest.param((pod("a", kind="sidecar"),), (record("a", "GPU-a-1"),), ALL, 1, ("GPU-a-1",), id="a sidecar goes on"),
    ],
)  # fmt: skip
def test_forgotten(
    pods: tuple[Pod, ...], records: tuple[GrantRecord, ...], available: list[str], vgpus: int, ids: tuple[str, ...] | None
) -> None:  # fmt: skip
    evidence = Evidence(node_name="n", pods=pods, records=records)
    assert forgotten(evidence, available, vgpus) == ids
