"""The registration loop when files disappear, agents meet, and all of it at once."""

import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from plugin_bed import GPU, NODE, Agent, allocatable, offered, own_sockets, pod
from waiting import eventually

from agent.domain.gpu import GpuInventory
from agent.sim.kubelet import StandInKubelet

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

    def removed() -> bool:  # a loop, because the agent tries to make new sockets meanwhile
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    kubelet.stop()
    if how == "removed":
        eventually(removed)
    else:
        directory.rename(directory.with_name("old"))
    eventually(lambda: not running.registered)
    kubelet.start()

    eventually(lambda: offered(kubelet, running))
    assert kubelet.admit(pod("1", 4)).ok


def test_directory_renamed_under_a_living_kubelet_and_put_back(
    kubelet: StandInKubelet, agent: Any, directory: Path
) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    directory.rename(directory.with_name("away"))
    eventually(lambda: not running.registered)
    directory.with_name("away").rename(directory)

    eventually(lambda: offered(kubelet, running))
    assert kubelet.admit(pod("1", 4)).ok


def test_directory_that_appears_after_us(directory: Path, agent: Any, stack: ExitStack) -> None:
    running = agent()
    status = running.plugin.status
    eventually(lambda: f"nor the directory {directory};" in status.now().reason)

    kubelet = stack.enter_context(StandInKubelet(directory))

    eventually(lambda: offered(kubelet, running))
    assert running.counted == ["ok"]


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

    eventually(lambda: offered(kubelet, running), within_s=60)
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

    eventually(lambda: _quiet(agents, for_s=0.5), within_s=60)

    eventually(lambda: allocatable(kubelet) == 4)
    assert kubelet.admit(pod("1", 4)).ok


def _quiet(agents: list[Agent], *, for_s: float) -> bool:
    before = [a.registrations for a in agents]
    time.sleep(for_s)
    return before == [a.registrations for a in agents] and all(a.registered for a in agents)
