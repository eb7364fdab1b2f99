"""Grants that have a name of their own: journal, kubelet's checkpoint, processes, Events."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_proc import FakeProc

from agent import logs
from agent.adapters.caches import directory_name
from agent.adapters.grant_log import FileGrantLog
from agent.adapters.kubelet_checkpoint import MAX_BYTES, NAME, KubeletCheckpoint
from agent.adapters.no_cluster import NoCluster
from agent.adapters.process_places import HostProcessPlaces
from agent.adapters.processes import HostProcesses
from agent.domain.enforcement import Granted
from agent.domain.grants import GrantOwner, GrantRecord
from agent.domain.identities import identity
from agent.domain.pods import Pod
from agent.errors import ClusterUnavailable, KubeletUnavailable
from agent.ports import ClusterEvent
from tests.unit.fakes import FakeCluster
from tests.wire.test_grant_log import file, record
from tests.wire.test_processes import MAIN, UID, cgroup, mounts

GRANT, OTHER = identity("slices", 0xABC), identity("slices", 0xDEF)
OWNER = GrantOwner(pod_uid=UID, namespace="team", pod_name="web", container="main")


def unnamed() -> GrantRecord:
    return replace(record("c", uid=GRANT), namespace="", pod_name=GRANT)


# --- the journal ---------------------------------------------------------------------------------


def test_an_owner_is_remembered(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(unnamed())
    grants.answered(unnamed())
    owned = grants.own(unnamed(), OWNER)
    assert owned is not None
    assert (owned.namespace, owned.pod_name, owned.container, owned.owner_uid, owned.answered) == (
        *("team", "web", "main", UID, True),
    )
    assert grants.records() == (owned,)
    assert FileGrantLog(tmp_path).records() == (owned,)
    grants.forget(frozenset({GRANT}))
    assert FileGrantLog(tmp_path).records() == ()


def test_the_owner_of_a_grant_that_is_gone(tmp_path: Path) -> None:
    assert FileGrantLog(tmp_path).own(unnamed(), OWNER) is None


def test_killed_while_it_is_noted_there_is_one_grant_under_either_name(tmp_path: Path) -> None:
    grants = FileGrantLog(tmp_path)
    grants.record(unnamed())
    grants.answered(unnamed())
    before = file(tmp_path, GRANT).read_bytes()
    grants.own(unnamed(), OWNER)
    after = file(tmp_path, GRANT).read_bytes()
    assert after.startswith(before)
    for size in range(len(before), len(after) + 1):
        file(tmp_path, GRANT).write_bytes(after[:size])
        (found,) = FileGrantLog(tmp_path).records()
        assert found.container in ("c", "main")
        assert found.device_ids == unnamed().device_ids


def test_files_keep_their_name_whoever_the_owner_is() -> None:
    assert directory_name(GRANT, "c") == directory_name(GRANT, "main") == f"{GRANT}_c"
    assert directory_name(UID, "main") == f"{UID}_main"


# --- kubelet's checkpoint ------------------------------------------------------------------------


def checkpoint(container: str = "main") -> str:
    entry = {
        "PodUID": UID,
        "ContainerName": container,
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"0": ["GPU-a-0"]},
        "AllocResp": "",
    }
    return json.dumps({"Data": {"PodDeviceEntries": [entry]}})


def test_the_checkpoint_is_read_again_when_it_is_another_one(tmp_path: Path) -> None:
    books = KubeletCheckpoint(tmp_path)
    with pytest.raises(KubeletUnavailable):
        books.entries()
    for container in ("one", "two"):
        part = tmp_path / "part"
        part.write_text(checkpoint(container))
        part.replace(tmp_path / NAME)
        assert [entry.container for entry in books.entries()] == [container]
        assert books.entries() is books.entries()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b" " * (MAX_BYTES + 1)])
def test_a_checkpoint_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(KubeletUnavailable, match="kubelet_internal_checkpoint"):
        KubeletCheckpoint(tmp_path).entries()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(checkpoint())
    (tmp_path / NAME).symlink_to("elsewhere")
    with pytest.raises(KubeletUnavailable):
        KubeletCheckpoint(tmp_path).entries()


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner_uid", "pid"),
    [
        pytest.param(UID, 70, id="the pod is known"),
        pytest.param("", 70, id="the pod is not known yet"),
        pytest.param("99999999-2222-3333-4444-555555555555", 0, id="it is another pod's"),
    ],
)
def test_processes_are_found_by_what_they_have_mounted(
    tmp_path: Path, owner_uid: str, pid: int
) -> None:
    proc = FakeProc(tmp_path)
    proc.add(70, cgroup(), mountinfo=mounts("c", GRANT))
    proc.add(71, cgroup(container_id="b" * 64), mountinfo=mounts("c", OTHER))
    host = HostProcesses(tmp_path, "containers")
    seen = host.look({GRANT: Granted(frozenset({"main"}), {}, owner_uid)})
    found = [process.pid for process in seen.processes.get((GRANT, "main"), ())]
    assert found == ([pid] if pid else [])


def test_two_containers_of_one_pod_are_told_apart(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(70, cgroup(), mountinfo=mounts("c", GRANT))
    proc.add(71, cgroup(container_id="b" * 64), mountinfo=mounts("c", OTHER))
    proc.add(72, cgroup())  # rid of its mounts: its neighbour tells
    host = HostProcesses(tmp_path, "containers")
    granted = {
        GRANT: Granted(frozenset({"one"}), {}, UID),
        OTHER: Granted(frozenset({"two"}), {}, UID),
    }
    host.look(granted)
    seen = host.look(granted)
    by_name = {key: {p.pid for p in some} for key, some in seen.processes.items()}
    assert by_name == {(GRANT, "one"): {70, 72}, (OTHER, "two"): {71}}


def test_whereabouts_name_the_grant(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(70, cgroup(), mountinfo=mounts("c", GRANT))
    proc.add(71, cgroup(), mountinfo=mounts("main", GRANT))
    found = HostProcessPlaces(tmp_path, "containers").trace({70, 71})
    assert (found[70].grant, found[70].pod_uid, found[70].container_id) == (GRANT, UID, MAIN)
    assert found[71].grant == "", "not as we name it"


# --- Events --------------------------------------------------------------------------------------


def pod(name: str = "web") -> Pod:
    return Pod(namespace="team", name=name, uid=GRANT, kubelet_uid=UID)


def test_events_are_about_the_pod_by_its_own_uid() -> None:
    cluster = FakeCluster()
    NoCluster(cluster).post_event(ClusterEvent(reason="X", message="y", pod=pod()))
    (event,) = cluster.events
    assert event.pod is not None
    assert event.pod.uid == UID


def test_without_a_cluster_an_event_is_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure()  # whatever tests before this one have made of it
    NoCluster().post_event(ClusterEvent(reason="GpuUnhealthy", message="XID 79", pod=pod()))
    said = capsys.readouterr().err
    assert "reason=GpuUnhealthy about=team/web" in said
    assert "XID 79" in said


def test_without_a_cluster_nobody_is_evicted() -> None:
    with pytest.raises(ClusterUnavailable, match="without an API server"):
        NoCluster().evict_pod(pod())
