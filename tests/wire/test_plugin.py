"""The registration loop against the stand-in kubelet of both generations, over real sockets."""

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugin_bed import GPU, NODE, allocatable, offered, own_sockets, pod
from sick_gpus import with_health
from waiting import eventually

from agent import logs
from agent.domain.gpu import GpuInventory, Sharing
from agent.domain.registration import ABSENT, Phase
from agent.sim.kubelet import StandInKubelet

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

    running.inventory.update(lambda now: with_health(now, "GPU-1", "XID 79"))
    eventually(lambda: offered(kubelet, running, 2))
    assert kubelet.node_status().capacity[GPU] == 4
    running.inventory.update(lambda now: with_health(now, "GPU-1", ""))
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

    status = running.plugin.status
    eventually(lambda: status.now().reason.endswith("listed no GPUs yet: no driver"))
    running.inventory.publish(NODE)

    eventually(lambda: offered(kubelet, running))


def test_nothing_is_announced_before_what_containers_need_was_tried(
    kubelet: StandInKubelet, agent: Any
) -> None:
    tried = threading.Event()
    running = agent(prepared=lambda _timeout_s: tried.wait(0.01))
    time.sleep(0.2)
    assert kubelet.history("registered") == []
    assert own_sockets(kubelet.directory) == []

    eventually(lambda: "what containers need" in running.plugin.status.now().reason)
    tried.set()

    eventually(lambda: offered(kubelet, running))


def test_who_waits_for_what_containers_need_stops_at_once(
    kubelet: StandInKubelet, agent: Any
) -> None:
    asked = threading.Event()
    running = agent(prepared=lambda _timeout_s: asked.set() or False)  # type: ignore[func-returns-value]
    assert asked.wait(60)
    assert running.stop() == 0
    assert kubelet.history("registered") == []


def test_a_list_that_grew_too_long_is_cut_to_what_kubelet_can_bear(
    kubelet: StandInKubelet, agent: Any
) -> None:
    long_named = GpuInventory.of(replace(gpu, uuid=f"GPU-{gpu.index:036}") for gpu in NODE.gpus)

    running = agent(inventory=long_named, sharing=Sharing(split_count=65_000))

    eventually(lambda: running.registered)
    eventually(lambda: GPU in kubelet.resources and kubelet.resources[GPU].healthy)
    assert len(kubelet.resources[GPU].healthy) < 65_000 * len(NODE.gpus)


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
    directory: Path, agent: Any, stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(form="logfmt", environ={})  # a command that was tested before may be silent
    now_s = [0.0]
    running = agent(clock=lambda: now_s[0])
    for _ in range(60):
        now_s[0] += 60.0
        running.plugin._wake()
    status = running.plugin.status
    eventually(lambda: status.now().reason.startswith(f"{ABSENT}: there is no {directory}"))
    assert status.now().attempt == 0  # no socket is made for nobody
    [line] = [line for line in capsys.readouterr().err.splitlines() if "kubelet_absent" in line]
    assert f"there is no {directory}" in line
    assert "--kubelet-socket" in line

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
    assert kubelet.admit(pod("1", 4)).ok


def test_new_registration_server_of_a_living_kubelet(kubelet: StandInKubelet, agent: Any) -> None:
    running = agent()
    eventually(lambda: offered(kubelet, running))

    kubelet.restart_registration()

    eventually(lambda: running.registrations == 2)
    eventually(lambda: offered(kubelet, running))
    assert kubelet.admit(pod("1", 4)).ok


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
