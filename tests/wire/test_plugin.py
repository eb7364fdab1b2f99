"""The registration loop against the stand-in kubelet of both generations, over real sockets."""

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from agent.adapters.device_plugin import Answers
from agent.adapters.kubelet import SOCKET_PREFIX, KubeletLink
from agent.adapters.socket_watch import SocketWatch
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grants import Grant
from agent.domain.registration import Phase
from agent.domain.vgpu_ids import advertised
from agent.services.plugin import Plugin
from agent.services.published import Published
from agent.sim.kubelet import ContainerSpec, PodSpec, StandInKubelet
from agent.supervisor import RestartPolicy, Supervisor

GPU = "nvidia.com/gpu"
SHARING = Sharing(split_count=2)
NODE = GpuInventory.of(
    Gpu(uuid=f"GPU-{i}", index=i, name="NVIDIA A40", memory_mib=1024) for i in range(2)
)


class EnvPerVgpu:
    """Allocator that gives what it is asked for; no opinion on which."""

    def allocate(self, device_ids: Sequence[str], *, deadline_s: float) -> Grant:
        assert deadline_s > 0
        return Grant(envs={"IDS": ",".join(device_ids)})

    def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int, *, deadline_s: float
    ) -> Sequence[str]:
        assert deadline_s > 0
        return [*must_include, *available][:size]


class Agent:
    """The plugin loop under a supervisor, and nothing else of the agent."""

    def __init__(
        self,
        directory: Path,
        *,
        inventory: GpuInventory = NODE,
        sharing: Sharing = SHARING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inventory = Published(inventory)
        self.counted: list[str] = []
        self.left: list[str] = []
        allocator = EnvPerVgpu()
        answers = Answers(
            self.inventory, lambda now: advertised(now, sharing), allocator, allocator
        )
        socket = directory / "kubelet.sock"
        self.plugin = Plugin(
            GPU,
            KubeletLink(socket, GPU, answers),
            SocketWatch(socket),
            self.inventory,
            sharing,
            count=lambda _resource, outcome: self.counted.append(outcome),
            leave=self.left.append,
            clock=clock,
        )
        self.supervisor = Supervisor([self.plugin], policy=RestartPolicy(budget=0))
        self.supervisor.start()

    @property
    def registered(self) -> bool:
        return self.plugin.status.now().registered

    @property
    def registrations(self) -> int:
        return self.plugin.status.now().registrations

    def stop(self) -> int:
        self.supervisor.stop()
        return self.supervisor.join(timeout_s=10.0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d") / "dp"


@pytest.fixture(params=["1.20", "1.36"])
def kubelet(request: pytest.FixtureRequest, directory: Path, stack: ExitStack) -> StandInKubelet:
    return stack.enter_context(StandInKubelet(directory, behaviour=request.param))


@pytest.fixture
def agent(directory: Path, stack: ExitStack) -> Callable[..., Agent]:
    def start(**options: Any) -> Agent:
        started = Agent(directory, **options)
        stack.callback(started.stop)
        return started

    return start


def allocatable(kubelet: StandInKubelet) -> int | None:
    return kubelet.node_status().allocatable.get(GPU)


def offered(kubelet: StandInKubelet, agent: Agent, vgpus: int = 4) -> bool:
    """Kubelet has the vGPUs, and agent and kubelet agree that it does."""
    return agent.registered and allocatable(kubelet) == vgpus


def own_sockets(directory: Path) -> list[Path]:
    return list(directory.glob(f"{SOCKET_PREFIX}*"))


def pod(uid: str, count: int = 1) -> PodSpec:
    return PodSpec(uid, "default", uid, [ContainerSpec("c", {GPU: count})])


# --- the good case -------------------------------------------------------------------------------


def test_registers_and_serves_pods(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    grant = kubelet.admit(pod("1", 2)).containers["c"]

    assert sorted(grant.env["IDS"].split(",")) == list(grant.device_ids[GPU])
    assert running.counted == ["ok"]
    assert len(own_sockets(kubelet.directory)) == 1


def test_health_reaches_kubelet_and_comes_back(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    running.inventory.update(lambda now: now.with_health("GPU-1", "XID 79"))
    eventually(lambda: offered(kubelet, running, 2))
    assert kubelet.node_status().capacity[GPU] == 4
    running.inventory.update(lambda now: now.with_health("GPU-1", ""))
    eventually(lambda: offered(kubelet, running, 4))

    assert running.registrations == 1  # on one and the same stream


def test_stops_cleanly_and_takes_its_socket_along(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    assert running.stop() == 0

    assert own_sockets(kubelet.directory) == []
    assert kubelet.socket.exists()
    eventually(lambda: allocatable(kubelet) == 0)
    assert running.plugin.status.now().phase is Phase.LOST


def test_nothing_is_announced_before_the_gpus_are_known(
    kubelet: StandInKubelet, agent: Any
) -> None:
    running = agent(inventory=GpuInventory(driver_error="no driver"))
    time.sleep(0.2)
    assert kubelet.history("registered") == []
    assert own_sockets(kubelet.directory) == []

    running.inventory.publish(NODE)

    eventually(lambda: offered(kubelet, running))


def test_impossible_split_count_is_reported_with_one_that_works(
    kubelet: StandInKubelet, agent: Any
) -> None:
    long_named = GpuInventory.of(replace(gpu, uuid=f"GPU-{gpu.index:036}") for gpu in NODE.gpus)

    running = agent(inventory=long_named, sharing=Sharing(split_count=65_000))

    eventually(lambda: running.left)
    assert "set the split count to" in running.left[0]
    eventually(lambda: running.registered)  # should nobody leave: with as many as kubelet can bear


# --- kubelet comes and goes ----------------------------------------------------------------------


def test_kubelet_restart_is_survived_and_pods_keep_their_vgpus(
    kubelet: StandInKubelet, agent: Any
) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))
    held = kubelet.admit(pod("1", 3)).containers["c"].device_ids[GPU]

    for restarts in range(1, 4):
        kubelet.restart()
        eventually(lambda: offered(kubelet, running))
        assert running.registrations >= restarts + 1

    other = kubelet.admit(pod("2", 1)).containers["c"].device_ids[GPU]
    assert not set(held) & set(other)
    eventually(lambda: len(own_sockets(kubelet.directory)) == 1)


def test_kubelet_that_comes_an_hour_late_is_registered_with(
    directory: Path, agent: Any, stack: ExitStack
) -> None:
    now_s = [0.0]
    running = agent(clock=lambda: now_s[0])
    for _ in range(60):
        now_s[0] += 60.0
        running.plugin._wake()
    status = running.plugin.status
    eventually(lambda: status.now().reason == "kubelet is absent")
    assert status.now().attempt == 0  # no socket is made for nobody

    kubelet = stack.enter_context(StandInKubelet(directory))
    now_s[0] += 0.1

    eventually(lambda: offered(kubelet, running))


def test_kubelet_that_is_down_for_an_hour_is_waited_for(
    kubelet: StandInKubelet, agent: Any
) -> None:
    now_s = [0.0]
    running = agent(clock=lambda: now_s[0])
    eventually(lambda: offered(kubelet, running))
    kubelet.stop()  # its socket stays, but nobody answers
    eventually(lambda: not running.registered)
    for _ in range(120):
        now_s[0] += 30.0
        running.plugin._wake()
    eventually(lambda: "failed" in running.counted)
    assert len(own_sockets(kubelet.directory)) <= 1

    kubelet.start()

    eventually(lambda: offered(kubelet, running))


def test_dropped_stream_is_replaced_at_once(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    kubelet.drop_stream(GPU)

    eventually(lambda: running.registrations == 2)
    eventually(lambda: offered(kubelet, running))


def test_new_registration_server_of_a_living_kubelet(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    kubelet.restart_registration()

    eventually(lambda: running.registrations == 2)
    eventually(lambda: offered(kubelet, running))


@pytest.mark.parametrize("kubelet", ["1.20"], indirect=True)
def test_accepted_but_never_dialled_is_not_believed(
    kubelet: StandInKubelet, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.20 says OK before it dials; here its first dial never happens."""
    now_s = [0.0]
    plugins, dialled = kubelet._plugins, threading.Event()
    really = plugins._connect_and_follow
    monkeypatch.setattr(plugins, "_connect_and_follow", lambda _endpoint: dialled.set())
    running = agent(clock=lambda: now_s[0])
    assert dialled.wait(10)
    eventually(lambda: running.plugin.status.now().phase is Phase.REGISTERING)
    monkeypatch.setattr(plugins, "_connect_and_follow", really)

    def time_goes_on() -> bool:
        now_s[0] += 1.0
        return offered(kubelet, running)

    eventually(time_goes_on, every_s=0.05)
    assert running.counted == ["failed", "ok"]


# --- files disappear -----------------------------------------------------------------------------


def test_our_socket_removed(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))
    [lost] = own_sockets(kubelet.directory)

    lost.unlink()

    eventually(lambda: running.registrations == 2)
    eventually(lambda: offered(kubelet, running))
    [fresh] = own_sockets(kubelet.directory)
    assert fresh.name != lost.name


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_directory_made_anew(
    kubelet: StandInKubelet, agent: Any, directory: Path, how: str
) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    kubelet.stop()
    if how == "removed":
        shutil.rmtree(directory)
    else:
        directory.rename(directory.with_name("old"))
    eventually(lambda: not running.registered)
    kubelet.start()

    eventually(lambda: offered(kubelet, running))


def test_directory_renamed_under_a_living_kubelet_and_put_back(
    kubelet: StandInKubelet, agent: Any, directory: Path
) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    directory.rename(directory.with_name("away"))
    eventually(lambda: not running.registered)
    directory.with_name("away").rename(directory)

    eventually(lambda: offered(kubelet, running))


def test_directory_that_appears_after_us(directory: Path, agent: Any, stack: ExitStack) -> None:
    running = agent()
    eventually(lambda: running.plugin.status.now().reason == "kubelet is absent")

    kubelet = stack.enter_context(StandInKubelet(directory))

    eventually(lambda: offered(kubelet, running))


def test_nothing_of_others_is_touched(kubelet: StandInKubelet, agent: Any) -> None:
    foreign = kubelet.directory / "nvidia-gpu.sock"
    foreign.touch()
    running = agent()
    eventually(lambda: offered(kubelet, running))
    kubelet.drop_stream(GPU)
    eventually(lambda: running.registrations == 2)
    running.stop()

    assert foreign.exists()


@pytest.mark.parametrize("seed", range(3))
def test_any_series_of_mishaps_ends_with_a_registration(
    kubelet: StandInKubelet, agent: Any, directory: Path, seed: int
) -> None:
    def lose_our_socket() -> None:
        for path in own_sockets(directory):
            path.unlink(missing_ok=True)

    def lose_kubelets_socket() -> None:
        kubelet.socket.unlink(missing_ok=True)

    def move_the_directory() -> None:
        kubelet.stop()
        directory.rename(directory.with_name(f"old-{time.monotonic_ns()}"))
        kubelet.start()

    chance = random.Random(seed)  # noqa: S311 - a series that can be had again
    running = agent()
    for _ in range(12):
        chance.choice(
            [
                kubelet.restart,
                kubelet.restart_registration,
                lambda: kubelet.drop_stream(GPU),
                lose_our_socket,
                lose_kubelets_socket,
                move_the_directory,
            ]
        )()
        time.sleep(chance.choice([0.0, 0.01, 0.1]))
    kubelet.restart()

    eventually(lambda: offered(kubelet, running), within_s=30.0)
    eventually(lambda: len(own_sockets(directory)) == 1)
    assert kubelet.admit(pod("1", 4)).ok


# --- two of us -----------------------------------------------------------------------------------


def test_successor_survives_the_end_of_its_predecessor(kubelet: StandInKubelet, agent: Any) -> None:
    """Kubelets 1.25 to 1.36 disconnect the newer plugin when the older one goes."""
    old = agent()
    eventually(lambda: offered(kubelet, old))
    new = agent(inventory=GpuInventory.of(NODE.gpus[:1]))
    eventually(lambda: offered(kubelet, new, 2))

    old.stop()

    eventually(lambda: len(kubelet.history("stream_closed")) >= 1)
    if kubelet.behaviour == "1.36":
        eventually(lambda: new.registrations >= 2)
    eventually(lambda: offered(kubelet, new, 2))
    assert kubelet.admit(pod("1", 2)).ok


def test_two_agents_on_one_node_settle(kubelet: StandInKubelet, agent: Any) -> None:
    """Each one's re-registration can end the other's stream: they must not chase each other."""
    agents = [agent(), agent()]
    eventually(lambda: all(a.registered for a in agents))
    for _ in range(3):
        kubelet.drop_stream(GPU)
        eventually(lambda: all(a.registered for a in agents))

    eventually(lambda: _quiet(agents, for_s=0.5), within_s=30.0)

    eventually(lambda: allocatable(kubelet) == 4)
    assert kubelet.admit(pod("1", 4)).ok


def _quiet(agents: list[Agent], *, for_s: float) -> bool:
    before = [a.registrations for a in agents]
    time.sleep(for_s)
    return before == [a.registrations for a in agents] and all(a.registered for a in agents)
