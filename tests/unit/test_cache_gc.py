"""Directories and grants of pods that are gone are deleted, all others stay."""

import threading

import pytest

from agent.domain.grants import Grant, GrantRecord
from agent.services.cache_gc import CacheGc
from agent.services.published import Pods, PodTable, Published
from agent.supervisor import Lifeline
from tests.unit.fakes import FakeCaches, FakeGrantLog, pod
from tests.waiting import eventually

OLD, NOW = 0.0, 1000.0


@pytest.fixture
def caches() -> FakeCaches:
    made = FakeCaches()
    for uid in ("uid-here", "uid-gone"):
        made.create(uid, "main")
    return made


@pytest.fixture
def grant_log() -> FakeGrantLog:
    made = FakeGrantLog()
    for uid in ("uid-here", "uid-gone"):
        made.record(
            GrantRecord(
                pod_uid=uid,
                namespace="team",
                pod_name=uid,
                container="main",
                device_ids=(),
                claims=(),
                grant=Grant(),
                granted_at_s=OLD,
            )
        )
    return made


def table(*, synced: bool = True) -> Pods:
    here = pod("here", ";")
    return Published(PodTable({here.uid: here}, synced=synced))


def gc(caches: FakeCaches, grant_log: FakeGrantLog, pods: Pods) -> CacheGc:
    return CacheGc(caches, grant_log, pods, after_s=300, now_s=lambda: NOW)


def test_what_is_gone_goes(caches: FakeCaches, grant_log: FakeGrantLog) -> None:
    assert gc(caches, grant_log, table()).collect_once() == 1
    assert caches.directories.keys() == {"uid-here_main"}
    assert [record.pod_uid for record in grant_log.records()] == ["uid-here"]
    assert grant_log.tidied == [(frozenset({"uid-here"}), NOW)]


def test_nothing_goes_before_the_pods_are_known(
    caches: FakeCaches, grant_log: FakeGrantLog
) -> None:
    assert gc(caches, grant_log, table(synced=False)).collect_once() == 0
    assert grant_log.tidied == []
    assert len(caches.directories) == len(grant_log.records()) == 2


def test_young_ones_stay(caches: FakeCaches, grant_log: FakeGrantLog) -> None:
    caches.now_s = NOW - 10
    caches.create("uid-new", "main")
    gc(caches, grant_log, table()).collect_once()
    assert "uid-new_main" in caches.directories


def test_what_cannot_be_deleted_does_not_stop_the_rest(
    caches: FakeCaches, grant_log: FakeGrantLog
) -> None:
    caches.create("uid-also-gone", "main")
    caches.faults.once("discard directory", "error")
    assert gc(caches, grant_log, table()).collect_once() == 1
    assert len(caches.directories) == 2
    assert gc(caches, grant_log, table()).collect_once() == 1
    assert caches.directories.keys() == {"uid-here_main"}


def test_the_loop_starts_with_a_scan_once_the_pods_are_known(
    caches: FakeCaches, grant_log: FakeGrantLog
) -> None:
    stop, pods = threading.Event(), table(synced=False)
    service = CacheGc(caches, grant_log, pods, every_s=3600, now_s=lambda: NOW)
    thread = threading.Thread(target=service.run, args=(Lifeline(stop),))
    thread.start()
    try:
        pods.update(lambda now: PodTable(now.pods, synced=True))
        eventually(lambda: len(caches.directories) == 1)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
