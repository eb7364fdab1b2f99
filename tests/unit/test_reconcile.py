"""Comparing the grants with kubelet's books: every way in which they can differ."""

import threading
from dataclasses import replace

import pytest

from agent.domain.grants import Grant, GrantRecord
from agent.domain.pods import Container, Pod
from agent.errors import KubeletUnavailable
from agent.ports import ClusterEvent, KubeletAssignment
from agent.services.plugin import PluginStatus
from agent.services.published import PodTable, Published
from agent.services.reconcile import Comparison, Reconcile, compare
from agent.supervisor import Lifeline
from tests.waiting import eventually

GPU = "nvidia.com/gpu"
NOW_S = 10_000.0
POD = Pod(
    namespace="ns",
    name="p",
    uid="u1",
    phase="Running",
    containers=(
        Container(name="init", kind="init", vgpus=1),
        Container(name="side", kind="sidecar", vgpus=1),
        Container(name="c", vgpus=1),
    ),
)
RECORD = GrantRecord(
    pod_uid="u1",
    namespace="ns",
    pod_name="p",
    container="c",
    device_ids=("GPU-a-0",),
    claims=(),
    grant=Grant(),
    granted_at_s=NOW_S - 600,
    answered=True,
)
HELD = KubeletAssignment("ns", "p", "c", GPU, ("GPU-a-0",))
OTHER = replace(HELD, device_ids=("GPU-b-3",))


def table(*pods: Pod, synced: bool = True) -> PodTable:
    return PodTable({pod.uid: pod for pod in pods}, synced=synced)


@pytest.mark.parametrize(
    ("record", "held", "pods", "problem"),
    [
        pytest.param(RECORD, [HELD], table(POD), "", id="both agree"),
        pytest.param(
            replace(RECORD, device_ids=("b", "a")),
            [replace(HELD, device_ids=("a", "b"))],
            table(POD),
            "",
            id="order does not matter",
        ),
        pytest.param(RECORD, [OTHER], table(POD), "kubelet assigned GPU-b-3", id="other vGPUs"),
        pytest.param(RECORD, [], table(POD), "kubelet knows nothing of that", id="checkpoint lost"),
        pytest.param(
            RECORD, [], table(replace(POD, phase="Pending")), "", id="not running: not listed yet"
        ),
        pytest.param(
            replace(RECORD, container="init"),
            [],
            table(POD),
            "",
            id="init containers are not listed",
        ),
        pytest.param(
            replace(RECORD, container="side"), [], table(POD), "", id="1.20 does not list sidecars"
        ),
        pytest.param(
            replace(RECORD, granted_at_s=NOW_S - 5),
            [OTHER],
            table(POD),
            "",
            id="too young to judge",
        ),
        pytest.param(
            replace(RECORD, granted_at_s=NOW_S + 3600),
            [OTHER],
            table(POD),
            "kubelet assigned GPU-b-3",
            id="the clock was set back",
        ),
        pytest.param(
            replace(RECORD, answered=False), [OTHER], table(POD), "", id="never reached kubelet"
        ),
        pytest.param(
            RECORD, [OTHER], table(replace(POD, uid="u2")), "", id="another pod of the same name"
        ),
        pytest.param(
            RECORD, [OTHER], table(replace(POD, phase="Failed")), "", id="the pod is history"
        ),
        pytest.param(RECORD, [OTHER], table(synced=False), "", id="pods not known yet"),
    ],
)
def test_mismatch_of_one_container(
    record: GrantRecord, held: list[KubeletAssignment], pods: PodTable, problem: str
) -> None:
    found = compare([record], held, pods, now_s=NOW_S)

    assert len(found.mismatches) == bool(problem)
    for mismatch in found.mismatches:
        assert problem in mismatch.problem
        assert (mismatch.about, mismatch.pod) == ("ns/p/c", POD)


@pytest.mark.parametrize(
    ("record", "pods", "gone"),
    [
        pytest.param(RECORD, table(POD), [], id="running"),
        pytest.param(RECORD, table(), ["u1"], id="deleted"),
        pytest.param(RECORD, table(replace(POD, phase="Succeeded")), ["u1"], id="finished"),
        pytest.param(RECORD, table(synced=False), [], id="pods not known yet"),
        pytest.param(
            replace(RECORD, granted_at_s=NOW_S - 59), table(), [], id="the news may be on its way"
        ),
        pytest.param(
            replace(RECORD, granted_at_s=NOW_S + 3600), table(), ["u1"], id="the clock was set back"
        ),
        pytest.param(
            replace(RECORD, answered=False), table(), ["u1"], id="never reached kubelet, pod gone"
        ),
    ],
)
def test_grants_of_pods_that_are_gone_are_released(
    record: GrantRecord, pods: PodTable, gone: list[str]
) -> None:
    assert compare([record], [], pods, now_s=NOW_S).gone == frozenset(gone)


def test_assignments_of_an_earlier_plugin_are_counted_not_blamed() -> None:
    assert compare([], [HELD], table(POD), now_s=NOW_S) == Comparison(unremembered=1)


# --- the loop ------------------------------------------------------------------------------------


class Books:
    """Grant log and PodResources in one."""

    def __init__(self) -> None:
        self.recorded: list[GrantRecord] = [RECORD]
        self.held: list[KubeletAssignment] = [HELD]
        self.down = False
        self.asked = 0

    def assignments(self) -> tuple[KubeletAssignment, ...]:
        self.asked += 1
        if self.down:
            raise KubeletUnavailable("down")
        return tuple(self.held)

    def records(self) -> tuple[GrantRecord, ...]:
        return tuple(self.recorded)

    def forget(self, pod_uids: frozenset[str]) -> None:
        self.recorded = [r for r in self.recorded if r.pod_uid not in pod_uids]

    def record(self, record: GrantRecord) -> None:
        self.recorded.append(record)

    def answered(self, record: GrantRecord) -> None:
        raise AssertionError(record)

    def drop(self, record: GrantRecord) -> None:
        raise AssertionError(record)


class Node:
    """The loop with everything around it."""

    def __init__(self) -> None:
        self.books = Books()
        self.pods = Published(table(POD))
        self.status = Published(PluginStatus(resource=GPU))
        self.posted: list[ClusterEvent] = []
        self.counted = 0
        self.now_s = 0.0
        self.loop = Reconcile(
            GPU,
            self.books,
            self.books,
            self.pods,
            self.status,
            count=self.count,
            post=self.posted.append,
            settle_s=2.0,
            clock=lambda: self.now_s,
            wall_clock=lambda: NOW_S,
        )

    def count(self) -> None:
        self.counted += 1

    def register(self) -> None:
        self.status.update(lambda now: replace(now, registrations=now.registrations + 1))

    def after(self, seconds: float) -> Comparison | None:
        self.now_s += seconds
        return self.loop.step_once()


def test_nothing_is_compared_before_the_first_registration() -> None:
    node = Node()
    assert node.after(10_000) is None
    assert node.books.asked == 0


def test_each_registration_is_followed_by_a_comparison_and_then_every_ten_minutes() -> None:
    node = Node()
    node.register()
    assert node.after(0) is None  # pods that wait for us come first
    assert node.after(2) == Comparison()
    assert node.after(599) is None
    assert node.after(1) == Comparison()
    node.register()
    node.after(0)
    assert node.after(2) == Comparison()
    assert node.books.asked == 3


def test_mismatch_is_told_once_and_again_when_it_comes_back() -> None:
    node = Node()
    node.register()
    for held, told in ((OTHER, 1), (OTHER, 1), (HELD, 1), (OTHER, 2)):
        node.books.held = [held]
        node.after(0)
        node.after(600)
        assert (node.counted, len(node.posted)) == (told, told)
    assert node.posted[0].pod == POD
    assert "ns/p/c" in node.posted[0].message


def test_other_resources_are_none_of_our_business() -> None:
    node = Node()
    node.books.held = [HELD, replace(OTHER, resource="example.com/nic", container="x")]
    node.register()
    node.after(0)
    assert node.after(2) == Comparison()


def test_grants_of_gone_pods_are_forgotten() -> None:
    node = Node()
    node.pods.publish(table())
    node.register()
    node.after(0)
    node.after(2)
    assert node.books.recorded == []


def test_kubelet_that_does_not_tell_is_asked_again_soon() -> None:
    node = Node()
    node.books.down = True
    node.register()
    node.after(0)
    assert node.after(2) is None
    node.books.down = False
    assert node.after(9) is None
    assert node.after(1) == Comparison()


def test_a_registration_ends_the_wait_and_so_does_the_stop() -> None:
    node = Node()
    node.loop = Reconcile(GPU, node.books, node.books, node.pods, node.status, settle_s=0.0)
    stop = threading.Event()
    life = Lifeline(stop)
    thread = threading.Thread(target=node.loop.run, args=(life,), daemon=True)
    thread.start()
    for asked in (1, 2):
        node.register()
        assert eventually(lambda asked=asked: node.books.asked == asked)
    stop.set()
    life.interrupt()
    thread.join(10)
    assert not thread.is_alive()
