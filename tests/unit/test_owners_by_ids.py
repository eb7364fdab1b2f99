"""Whose a grant is where kubelet's checkpoint does not name it: in mode nvidia, by its ids."""

import pytest

from agent.domain.grants import Grant, GrantRecord
from agent.domain.identities import HOLDER, identity
from agent.domain.kubelet_books import Assigned, Entry, KubeletLook, owners

GPU = "nvidia.com/gpu"
IDS = frozenset({"GPU-a::1"})
NAME = identity("nvidia", 7)
RECORD = GrantRecord(
    pod_uid=NAME, namespace="", pod_name=NAME, container=HOLDER, device_ids=tuple(IDS),
    claims=(), grant=Grant(), granted_at_s=1.0,
)  # fmt: skip
HOLDS = Assigned(namespace="team", pod_name="a", container="main", resource=GPU, device_ids=IDS)


def entry(uid: str, container: str = "main", ids: frozenset[str] = IDS) -> Entry:
    return Entry(pod_uid=uid, container=container, resource=GPU, device_ids=ids)


@pytest.mark.parametrize(
    ("entries", "uid"),
    [
        pytest.param([entry("u1")], "u1", id="one has them"),
        pytest.param([entry("u1"), entry("u2", ids=frozenset({"GPU-b"}))], "u1", id="others have others"),
        pytest.param([entry("u1"), entry("u2")], "", id="two have them: the book is older than the grant"),
        pytest.param([entry("u1", container="init")], "", id="another container"),
        pytest.param([entry("u1", ids=IDS | {"GPU-b"})], "", id="these and more"),
        pytest.param([], "", id="nobody"),
    ],
)  # fmt: skip
def test_the_pods_uid(entries: list[Entry], uid: str) -> None:
    found = owners([RECORD], KubeletLook(assigned=[HOLDS], entries=entries))
    assert (found[NAME].pod_uid, found[NAME].pod_name) == (uid, "a")
