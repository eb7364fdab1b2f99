"""The DevicePlugin service and our socket files, over real gRPC on real unix sockets."""

import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from waiting import eventually

from agent import errors
from agent.adapters.device_plugin import INTERNAL, Answers, BoundedCalls, Overdue
from agent.adapters.kubelet import SOCKET_PREFIX, KubeletLink, sweep
from agent.adapters.socket_watch import SocketWatch
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import DeviceNode, Grant, Mount
from agent.domain.vgpu_ids import advertised
from agent.services.published import Inventory, Published
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc

GPU = "nvidia.com/gpu"
GRANT = Grant(
    envs={"CUDA_DEVICE_MEMORY_LIMIT_0": "1000m"},
    mounts=(Mount("/c", "/h", read_only=False), Mount("/etc/ld.so.preload", "/p")),
    device_nodes=(DeviceNode("/dev/nvidia0", "/root/dev/nvidia0"),),
    annotations={"k": "v"},
    cdi_devices=("vendor/class=a",),
)


class StubAllocator:
    """Answers with a grant, or does what the test wants."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], float]] = []
        self.act: Callable[[], Grant] = lambda: GRANT

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        self.asked.append((tuple(device_ids), deadline_s))
        return self.act()


class StubPreference:
    """Has the opinion that the test gives it."""

    def __init__(self) -> None:
        self.act: Callable[..., Sequence[str]] = lambda *_: ()

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int, *, deadline_s: float
    ) -> Sequence[str]:
        assert deadline_s > 0
        return self.act(available, must_include, size)


def inventory_of(count: int = 2) -> Inventory:
    return Published(
        GpuInventory.of(
            Gpu(uuid=f"GPU-{i}", index=i, name="NVIDIA A40", memory_mib=1024) for i in range(count)
        )
    )


class Served:
    """One served socket and kubelet's end of it."""

    def __init__(self, directory: Path, stack: ExitStack, *, budget_s: float = 2.0) -> None:
        directory.mkdir(exist_ok=True)
        self.inventory = inventory_of()
        self.allocator, self.preference = StubAllocator(), StubPreference()
        self.overdue: list[float] = []
        self.streams: list[bool] = []
        self.answers = Answers(
            self.inventory,
            lambda now: advertised(now, Sharing(split_count=2)),
            self.allocator,
            self.preference,
            budget_s=budget_s,
            on_overdue=self.overdue.append,
        )
        self.link = KubeletLink(directory / "kubelet.sock", GPU, self.answers)
        self.link.serve(1, self.streams.append)
        stack.callback(self.link.close)
        [self.path] = directory.glob(f"{SOCKET_PREFIX}*")
        channel = rpc.unix_channel(self.path, max_receive_bytes=1 << 22)
        stack.callback(channel.close)
        self.stub = rpc.DevicePluginStub(channel)

    def allocate(self, *ids: str) -> dp.ContainerAllocateResponse:
        request = dp.AllocateRequest(
            container_requests=[dp.ContainerAllocateRequest(device_ids=ids)]
        )
        [answer] = self.stub.allocate(request, timeout=20).container_responses
        return answer

    def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        asked = dp.ContainerPreferredAllocationRequest(
            available_device_ids=available, must_include_device_ids=must, allocation_size=size
        )
        request = dp.PreferredAllocationRequest(container_requests=[asked])
        [answer] = self.stub.get_preferred_allocation(request, timeout=20).container_responses
        return list(answer.device_ids)

    def watch(self) -> "Watching":
        return Watching(self.stub.list_and_watch(dp.Empty()))


class Watching:
    """Collects the lists of a stream, as {id: health}."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.lists: list[dict[str, str]] = []
        self.ended = ""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for message in self.stream:
                self.lists.append({d.id: d.health for d in message.devices})
            self.ended = "OK"
        except grpc.RpcError as error:
            self.ended = error.code().name

    def health(self) -> set[str]:
        return set(self.lists[-1].values()) if self.lists else set()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def served(tmp_path: Path, stack: ExitStack) -> Served:
    return Served(tmp_path / "dp", stack)


# --- ListAndWatch ------------------------------------------------------------------------------


def test_list_has_every_vgpu_and_follows_the_health_of_its_gpu(served: Served) -> None:
    watching = served.watch()
    eventually(lambda: watching.lists)
    assert watching.lists[0] == dict.fromkeys(
        ["GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-1-1"], "Healthy"
    )

    served.inventory.update(lambda now: now.with_health("GPU-1", "XID 79"))
    eventually(lambda: len(watching.lists) == 2)
    served.inventory.update(lambda now: now.with_health("GPU-1", ""))
    eventually(lambda: len(watching.lists) == 3)

    assert [h for d, h in watching.lists[1].items() if d.startswith("GPU-1")] == ["Unhealthy"] * 2
    assert [h for d, h in watching.lists[1].items() if d.startswith("GPU-0")] == ["Healthy"] * 2
    assert watching.lists[2] == watching.lists[0]


def test_change_that_kubelet_would_not_notice_is_not_sent(served: Served) -> None:
    watching = served.watch()
    eventually(lambda: watching.lists)

    served.inventory.update(lambda now: now.with_health("GPU-0", "XID 79"))
    eventually(lambda: len(watching.lists) == 2)
    served.inventory.update(lambda now: now.with_health("GPU-0", "XID 48"))  # sick as before
    served.inventory.update(lambda now: now.with_health("GPU-0", ""))

    eventually(lambda: watching.health() == {"Healthy"})
    assert len(watching.lists) == 3


def test_health_reaches_every_open_stream_and_allocate_still_answers(served: Served) -> None:
    streams = [served.watch() for _ in range(6)]
    eventually(lambda: all(s.lists for s in streams))

    served.inventory.update(lambda now: now.with_health("GPU-0", "XID 79"))

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
    options = served.stub.get_device_plugin_options(dp.Empty(), timeout=10)

    assert (options.get_preferred_allocation_available, options.pre_start_required) == (True, False)
    assert options == served.answers.options()


def test_pre_start_answers_all_the_same(served: Served) -> None:
    request = dp.PreStartContainerRequest(device_ids=["GPU-0-0"])
    assert served.stub.pre_start_container(request, timeout=10) == dp.PreStartContainerResponse()


def _raises(error: Exception) -> Callable[..., Any]:
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


def test_preference_that_hangs_is_not_waited_for(tmp_path: Path, stack: ExitStack) -> None:
    served = Served(tmp_path / "dp", stack, budget_s=0.05)
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

    assert len(served.stub.allocate(request, timeout=10).container_responses) == 2
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


def test_allocate_that_hangs_is_given_up(tmp_path: Path, stack: ExitStack) -> None:
    served = Served(tmp_path / "dp", stack, budget_s=0.05)
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


def test_too_many_hanging_calls_are_refused_at_once(tmp_path: Path, stack: ExitStack) -> None:
    served = Served(tmp_path / "dp", stack, budget_s=0.01)
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
        BoundedCalls().run(_raises(error), 10.0)


def test_bounded_call_frees_its_place() -> None:
    calls = BoundedCalls(limit=1)
    assert [calls.run(lambda i=i: i, 10.0) for i in range(50)] == list(range(50))


def test_call_beyond_the_limit_is_overdue_at_once() -> None:
    calls, release = BoundedCalls(limit=1), threading.Event()
    with pytest.raises(Overdue):
        calls.run(release.wait, 0.01)

    ran: list[int] = []
    with pytest.raises(Overdue) as overdue:
        calls.run(lambda: ran.append(1), 10.0)

    assert (overdue.value.working, ran) == (1, [])
    release.set()


# --- socket files --------------------------------------------------------------------------------


def test_every_socket_has_a_fresh_name_and_one_is_live(served: Served) -> None:
    first = served.path

    served.link.serve(2, served.streams.append)

    [second] = first.parent.glob(f"{SOCKET_PREFIX}*")
    assert second.name != first.name
    assert not first.exists()


def test_socket_is_roots_alone_whatever_the_umask(served: Served) -> None:
    assert stat.S_IMODE(served.path.lstat().st_mode) == 0o700
    assert stat.S_ISSOCK(served.path.lstat().st_mode)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_missing_or_foreign_socket_is_noticed(served: Served, replaced: bool) -> None:
    assert served.link.intact()
    served.path.unlink()
    if replaced:
        served.path.touch()

    assert not served.link.intact()


def test_missing_directory_is_a_sentence(tmp_path: Path, served: Served) -> None:
    link = KubeletLink(tmp_path / "absent" / "kubelet.sock", GPU, served.answers)

    with pytest.raises(errors.KubeletUnavailable, match=r"no such directory.*mounted as a whole"):
        link.serve(1, served.streams.append)


def test_path_that_no_socket_can_have_is_refused_before_anything_starts(served: Served) -> None:
    with pytest.raises(errors.ConfigError, match=r"at most 107 bytes.*shorter path"):
        KubeletLink(Path("/" + "x" * 80) / "kubelet.sock", GPU, served.answers)


def test_directory_with_odd_characters_works(tmp_path: Path, stack: ExitStack) -> None:
    served = Served(tmp_path / "a b%20#?", stack)
    assert served.allocate("GPU-0-0").envs


def _dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def test_sockets_of_dead_agents_are_swept_and_nothing_else(
    tmp_path: Path, stack: ExitStack
) -> None:
    live = stack.enter_context(socket.socket(socket.AF_UNIX))
    live.bind(str(tmp_path / f"{SOCKET_PREFIX}1-1-live.sock"))
    live.listen()
    _dead_socket(tmp_path / f"{SOCKET_PREFIX}2-1-dead.sock")
    _dead_socket(tmp_path / "nvidia-gpu.sock")
    (tmp_path / f"{SOCKET_PREFIX}3-1-file.sock").touch()
    (tmp_path / f"{SOCKET_PREFIX}4-1-link.sock").symlink_to("nvidia-gpu.sock")
    before = {path.name for path in tmp_path.iterdir()}

    assert sweep(tmp_path) == []  # too young to judge
    swept = sweep(tmp_path, now_s=lambda: time.time() + 60)

    assert [path.name for path in swept] == [f"{SOCKET_PREFIX}2-1-dead.sock"]
    assert {path.name for path in tmp_path.iterdir()} == before - {swept[0].name}


def test_sweeping_a_missing_directory_finds_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "absent") == []


def test_registration_without_a_kubelet_says_where_it_knocked(served: Served) -> None:
    with pytest.raises(errors.KubeletUnavailable, match=r"does not answer on .*kubelet\.sock"):
        served.link.register()


def test_interrupted_registration_ends_at_once(served: Served, stack: ExitStack) -> None:
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
    deaf.bind(str(served.path.parent / "kubelet.sock"))
    deaf.listen()
    failures: list[str] = []

    def register() -> None:
        try:
            served.link.register()
        except errors.KubeletUnavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=register)
    thread.start()
    served.link.interrupt()
    thread.join(10)

    assert failures == ["the agent is stopping"]


def test_registration_ends_when_our_socket_is_wiped(served: Served, stack: ExitStack) -> None:
    deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
    deaf.bind(str(served.path.parent / "kubelet.sock"))
    deaf.listen()
    served.path.unlink()

    with pytest.raises(errors.KubeletUnavailable, match="our socket disappeared"):
        served.link.register()


# --- socket watch --------------------------------------------------------------------------------


@pytest.fixture
def watch(tmp_path: Path, stack: ExitStack) -> tuple[SocketWatch, threading.Event, Path]:
    directory = tmp_path / "dp"
    directory.mkdir()
    watched = SocketWatch(directory / "kubelet.sock")
    woken = threading.Event()
    watched.start(woken.set)
    stack.callback(watched.stop)
    return watched, woken, directory


def test_look_tells_one_socket_from_the_next(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    watched, _, directory = watch
    seen = [watched.look()]
    for _ in range(2):
        _dead_socket(directory / "kubelet.sock")
        seen += [watched.look(), watched.look()]
        (directory / "kubelet.sock").unlink()
        seen.append(watched.look())

    none_1, first, first_again, none_2, second, second_again, none_3 = seen
    assert none_1 is none_2 is none_3 is None
    assert first == first_again is not None
    assert second == second_again
    assert second != first


def test_creation_of_kubelets_socket_wakes(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    _, woken, directory = watch
    _dead_socket(directory / "kubelet.sock")
    assert woken.wait(10)


def test_kubelets_checkpoint_does_not_wake(
    watch: tuple[SocketWatch, threading.Event, Path],
) -> None:
    _, woken, directory = watch
    (directory / "kubelet_internal_checkpoint").write_text("x")
    (directory / "other.sock").touch()
    assert not woken.wait(0.3)


@pytest.mark.parametrize("how", ["deleted", "renamed"])
def test_directory_made_anew_is_watched_anew(
    watch: tuple[SocketWatch, threading.Event, Path], how: str
) -> None:
    watched, woken, directory = watch
    if how == "deleted":
        directory.rmdir()
    else:
        directory.rename(directory.with_name("old"))
    assert watched.look() is None
    directory.mkdir()
    watched.look()
    woken.clear()

    _dead_socket(directory / "kubelet.sock")

    assert woken.wait(10)
    assert watched.look() is not None


def test_without_inotify_the_look_still_works(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with EMFILE, when other containers have used up the instances of this user."""
    from watchdog.observers import inotify

    def exhausted(*_: object, **__: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr(inotify.InotifyEmitter, "on_thread_start", exhausted)
    now_s = [0.0]
    watched = SocketWatch(tmp_path / "kubelet.sock", clock=lambda: now_s[0])
    woken = threading.Event()
    watched.start(woken.set)
    stack.callback(watched.stop)
    _dead_socket(tmp_path / "kubelet.sock")
    assert watched.look() is not None

    monkeypatch.undo()
    watched.look()
    (tmp_path / "kubelet.sock").unlink()
    assert not woken.wait(0.2)  # not tried again yet
    now_s[0] = 61.0
    watched.look()
    _dead_socket(tmp_path / "kubelet.sock")

    assert woken.wait(10)
