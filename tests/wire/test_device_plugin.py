"""The DevicePlugin service over real gRPC: lists, preferences, grants, refusals, hanging calls."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from plugin_bed import GRANT, Served
from sick_gpus import with_health
from waiting import eventually

from agent import errors
from agent.adapters import rpc_loop
from agent.adapters.device_plugin import INTERNAL, BoundedCalls, Overdue
from agent.wire import deviceplugin_pb2 as dp


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d") / "dp"


@pytest.fixture
def served(directory: Path, stack: ExitStack) -> Served:
    return Served(directory, stack)


# --- ListAndWatch ------------------------------------------------------------------------------


def test_list_has_every_vgpu_and_follows_the_health_of_its_gpu(served: Served) -> None:
    watching = served.watch()
    eventually(lambda: watching.lists)
    assert watching.lists[0] == dict.fromkeys(
        ["GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-1-1"], "Healthy"
    )

    served.inventory.update(lambda now: with_health(now, "GPU-1", "XID 79"))
    eventually(lambda: len(watching.lists) == 2)
    served.inventory.update(lambda now: with_health(now, "GPU-1", ""))
    eventually(lambda: len(watching.lists) == 3)

    assert [h for d, h in watching.lists[1].items() if d.startswith("GPU-1")] == ["Unhealthy"] * 2
    assert [h for d, h in watching.lists[1].items() if d.startswith("GPU-0")] == ["Healthy"] * 2
    assert watching.lists[2] == watching.lists[0]


def test_change_that_kubelet_would_not_notice_is_not_sent(served: Served) -> None:
    watching = served.watch()
    eventually(lambda: watching.lists)

    served.inventory.update(lambda now: with_health(now, "GPU-0", "XID 79"))
    eventually(lambda: len(watching.lists) == 2)
    served.inventory.update(lambda now: with_health(now, "GPU-0", "XID 48"))  # sick as before
    served.inventory.update(lambda now: with_health(now, "GPU-0", ""))

    eventually(lambda: watching.health() == {"Healthy"})
    assert len(watching.lists) == 3


def test_the_same_list_is_sent_once_more_where_that_is_wanted(served: Served) -> None:
    watching = served.watch()
    assert eventually(lambda: len(watching.lists) == 1)
    served.answers.again.publish(1)
    assert eventually(lambda: len(watching.lists) == 2)
    assert watching.lists[0] == watching.lists[1]


def test_health_reaches_every_open_stream_and_allocate_still_answers(served: Served) -> None:
    streams = [served.watch() for _ in range(6)]
    eventually(lambda: all(s.lists for s in streams))

    served.inventory.update(lambda now: with_health(now, "GPU-0", "XID 79"))

    eventually(lambda: all("Unhealthy" in s.health() for s in streams))
    assert served.allocate("GPU-1-0").envs
    assert served.streams == [True] * 6


def test_end_of_a_stream_is_noticed_and_frees_its_worker(served: Served) -> None:
    for _ in range(20):  # more than there are workers
        watching = served.watch()
        eventually(lambda w=watching: w.lists)
        watching.stream.cancel()
        eventually(lambda w=watching: w.ended)

    eventually(lambda: served.streams.count(False) == 20)
    assert served.allocate("GPU-0-0").envs


def test_close_ends_streams_without_an_error_and_removes_the_socket(served: Served) -> None:
    watching = served.watch()
    eventually(lambda: watching.lists)

    served.link.close()

    eventually(lambda: watching.ended == "OK")
    assert served.streams == [True, False]
    assert not served.path.exists()


# --- options, preference, pre-start --------------------------------------------------------------


def test_preference_is_announced_and_pre_start_is_not(served: Served) -> None:
    options = served.stub.get_device_plugin_options(dp.Empty(), timeout=60)

    assert (options.get_preferred_allocation_available, options.pre_start_required) == (True, False)
    assert options == served.answers.options()


def test_pre_start_answers_all_the_same(served: Served) -> None:
    request = dp.PreStartContainerRequest(device_ids=["GPU-0-0"])
    assert served.stub.pre_start_container(request, timeout=60) == dp.PreStartContainerResponse()


def _raises(error: BaseException) -> Callable[..., Any]:
    def act(*_: object) -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("opinion", "answer"),
    [
        pytest.param(lambda *_: ["c", "b"], ["c", "b"], id="an opinion"),
        pytest.param(lambda *_: (), ["b", "a"], id="none: must-include, then the first"),
        pytest.param(lambda *_: ["b"], ["b", "a"], id="too short"),
        pytest.param(lambda *_: ["a", "c"], ["b", "a"], id="without the must-include"),
        pytest.param(lambda *_: ["b", "x"], ["b", "a"], id="not on offer"),
        pytest.param(lambda *_: ["b", "b"], ["b", "a"], id="twice the same"),
        pytest.param(_raises(errors.ClusterUnavailable("down")), ["b", "a"], id="known error"),
        pytest.param(_raises(RuntimeError("secret")), ["b", "a"], id="unknown error"),
    ],
)
def test_preference_is_always_valid(
    served: Served, opinion: Callable[..., Sequence[str]], answer: list[str]
) -> None:
    served.preference.act = opinion

    assert served.prefer(["c", "a", "b"], ["b"], 2) == answer


def test_without_an_opinion_the_gpus_take_turns(served: Served) -> None:
    served.preference.act = lambda *_: ()

    available = ["GPU-a-0", "GPU-a-1", "GPU-b-0", "GPU-b-1"]
    assert served.prefer(available, ["GPU-a-1"], 3) == ["GPU-a-1", "GPU-b-0", "GPU-a-0"]


def test_preference_that_hangs_is_not_waited_for(directory: Path, stack: ExitStack) -> None:
    served = Served(directory, stack, budget_s=0.05)
    release = threading.Event()
    stack.callback(release.set)
    served.preference.act = lambda *_: (release.wait(), ["c"])[1]

    assert served.prefer(["a", "b", "c"], [], 1) == ["a"]


# --- Allocate ------------------------------------------------------------------------------------


def test_grant_is_told_in_full(served: Served) -> None:
    answer = served.allocate("GPU-0-1", "GPU-0-0")

    assert dict(answer.envs) == {"CUDA_DEVICE_MEMORY_LIMIT_0": "1000m"}
    assert [(m.container_path, m.host_path, m.read_only) for m in answer.mounts] == [
        ("/c", "/h", False),
        ("/etc/ld.so.preload", "/p", True),
    ]
    [node] = answer.devices
    assert (node.container_path, node.host_path) == ("/dev/nvidia0", "/root/dev/nvidia0")
    assert node.permissions == "rw"
    assert dict(answer.annotations) == {"k": "v"}
    assert [device.name for device in answer.cdi_devices] == ["vendor/class=a"]


def test_allocator_gets_sorted_ids_and_the_budget(served: Served) -> None:
    before_s = time.monotonic()
    served.allocate("GPU-1-0", "GPU-0-0")

    [(ids, deadline_s)] = served.allocator.asked
    assert ids == ("GPU-0-0", "GPU-1-0")
    assert before_s < deadline_s <= time.monotonic() + 2.0


def test_several_containers_in_one_request_are_answered_in_order(served: Served) -> None:
    request = dp.AllocateRequest(
        container_requests=[dp.ContainerAllocateRequest(device_ids=[i]) for i in ("b", "a")]
    )

    assert len(served.stub.allocate(request, timeout=60).container_responses) == 2
    assert [ids for ids, _ in served.allocator.asked] == [("b",), ("a",)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(errors.UnknownDevice("u"), "NOT_FOUND", id="unknown device"),
        pytest.param(errors.NoPendingPod("u"), "FAILED_PRECONDITION", id="no pending pod"),
        pytest.param(errors.CountMismatch("u"), "FAILED_PRECONDITION", id="count mismatch"),
        pytest.param(errors.MalformedAnnotation("u"), "INVALID_ARGUMENT", id="malformed"),
        pytest.param(errors.NodeNotReady("u"), "UNAVAILABLE", id="node not ready"),
        pytest.param(errors.BudgetExceeded("u"), "DEADLINE_EXCEEDED", id="budget exceeded"),
        pytest.param(errors.ClusterUnavailable("u"), "UNAVAILABLE", id="API server away"),
        pytest.param(errors.ClusterConflict("u"), "ABORTED", id="conflict"),
        pytest.param(errors.ClusterGone("u"), "NOT_FOUND", id="pod gone"),
        pytest.param(errors.ClusterDenied("u"), "PERMISSION_DENIED", id="RBAC"),
        pytest.param(errors.AgentError("u"), "FAILED_PRECONDITION", id="any other of ours"),
    ],
)
def test_refusal_keeps_its_sentence(served: Served, error: Exception, code: str) -> None:
    served.allocator.act = _raises(error)

    with pytest.raises(grpc.RpcError) as refused:
        served.allocate("GPU-0-0")

    assert (refused.value.code().name, refused.value.details()) == (code, "u")


def test_every_error_of_ours_has_a_status() -> None:
    from agent.adapters.device_plugin import _CODES

    ours = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert ours
    assert all(any(issubclass(error, kind) for kind, _ in _CODES) for error in ours)


def test_text_of_a_defect_stays_inside(served: Served) -> None:
    served.allocator.act = _raises(ValueError("token=abc"))

    with pytest.raises(grpc.RpcError) as refused:
        served.allocate("GPU-0-0")

    assert (refused.value.code().name, refused.value.details()) == ("INTERNAL", INTERNAL)


def test_text_of_a_refusal_is_one_line_of_bounded_length(served: Served) -> None:
    served.allocator.act = _raises(errors.NoPendingPod("a\n\x1b[31mb\u202e " + "ü" * 5000))

    with pytest.raises(grpc.RpcError) as refused:
        served.allocate("GPU-0-0")

    text = refused.value.details()
    assert text.startswith("a [31mb ü")
    assert len(text) == 1000
    assert text.isprintable()


def test_allocate_that_hangs_is_given_up(directory: Path, stack: ExitStack) -> None:
    served = Served(directory, stack, budget_s=0.05)
    release = threading.Event()
    stack.callback(release.set)
    served.allocator.act = lambda: (release.wait(), GRANT)[1]

    with pytest.raises(grpc.RpcError) as refused:
        served.allocate("GPU-0-0")

    assert refused.value.code().name == "DEADLINE_EXCEEDED"
    assert "within 0.05 s" in refused.value.details()
    assert len(served.overdue) == 1
    served.allocator.act = lambda: GRANT
    assert served.allocate("GPU-0-0").envs  # the next one is served


def test_too_many_hanging_calls_are_refused_at_once(directory: Path, stack: ExitStack) -> None:
    served = Served(directory, stack, budget_s=0.01)
    release = threading.Event()
    stack.callback(release.set)
    served.allocator.act = lambda: (release.wait(), GRANT)[1]
    for _ in range(8):
        with pytest.raises(grpc.RpcError, match="within"):
            served.allocate("GPU-0-0")

    with pytest.raises(grpc.RpcError, match="8 earlier calls that do not come back"):
        served.allocate("GPU-0-0")

    release.set()
    served.allocator.act = lambda: GRANT

    def answers() -> bool:
        try:
            return bool(served.allocate("GPU-0-0").envs)
        except grpc.RpcError:
            return False

    eventually(answers)


def test_close_lets_an_allocate_under_way_finish(served: Served) -> None:
    entered = threading.Event()
    release = threading.Event()
    served.allocator.act = lambda: (entered.set(), release.wait(10), GRANT)[2]
    answers: list[Any] = []
    call = threading.Thread(target=lambda: answers.append(served.allocate("GPU-0-0")))
    call.start()
    assert entered.wait(10)
    closing = threading.Thread(target=served.link.close)
    closing.start()

    release.set()

    closing.join(10)
    call.join(10)
    assert dict(answers[0].envs) == dict(GRANT.envs)


# --- bounded calls -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TimeoutError("its own"), id="a time-out of its own"),
        pytest.param(KeyError("k"), id="any error"),
    ],
)
def test_bounded_call_raises_what_the_work_raises(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error.args[0])):
        rpc_loop.run(BoundedCalls().run(_raises(error), 10.0), 20.0)


def test_bounded_call_frees_its_place() -> None:
    calls = BoundedCalls(limit=1)
    assert [rpc_loop.run(calls.run(lambda i=i: i, 10.0), 20.0) for i in range(50)] == list(
        range(50)
    )


def test_call_beyond_the_limit_is_overdue_at_once() -> None:
    calls, release = BoundedCalls(limit=1), threading.Event()
    with pytest.raises(Overdue):
        rpc_loop.run(calls.run(release.wait, 0.01), 20.0)

    ran: list[int] = []
    with pytest.raises(Overdue) as overdue:
        rpc_loop.run(calls.run(lambda: ran.append(1), 10.0), 20.0)

    assert (overdue.value.working, ran) == (1, [])
    release.set()


def test_a_call_that_would_end_its_thread_is_a_defect_like_any_other(served: Served) -> None:
    served.allocator.act = _raises(SystemExit(3))
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as refused:
            served.allocate("GPU-0-0")
        assert refused.value.details() == INTERNAL


ASKING_AT_ONCE = """
import asyncio, threading
from agent.adapters import rpc_loop
ready, loops = threading.Barrier(8), []
async def loop_id():
    return id(asyncio.get_running_loop())
def ask():
    ready.wait()
    loops.append(rpc_loop.run(loop_id(), 10.0))
asking = [threading.Thread(target=ask) for _ in range(8)]
[thread.start() for thread in asking]
[thread.join() for thread in asking]
print(len(loops), len(set(loops)))
"""


def test_there_is_one_loop_whoever_asks_first() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", ASKING_AT_ONCE], capture_output=True, text=True, check=True
    )
    assert asked.stdout == "8 1\n"
