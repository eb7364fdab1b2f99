"""Paths, control characters, a mebibyte, unicode: as a setting, a device id, a pod's name, a region.

Against the agent as a process: nothing comes of it but a clear error.
"""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from made_regions import OURS, MadeSlot, made

from agent.adapters.kubelet import SOCKET_PREFIX
from agent.errors import ConfigError
from agent.settings.resolve import resolve
from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.sim.node import Ask, SimNode
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.test_slices import LoneMaker, lone
from tests.e2e.whole import serves, up
from tests.faults.conftest import make_node
from tests.waiting import eventually

__all__ = ["lone", "make_node"]
pytestmark = pytest.mark.timeout(240)

MEBIBYTE = 1 << 20
LONGEST_SENTENCE = 4096
HOSTILE = {
    "a path above": "../../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "control characters": "a\x1b[2J\x07\r\nb",
    "a mebibyte": "a" * MEBIBYTE,
    "unicode": "p\u202eo\u0301d\U0001f4a3\u2028",
}
WORST = {what: HOSTILE[what] for what in ("control characters", "a mebibyte")}
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2028]")


def unclear(text: str) -> str:
    """What is wrong with a sentence for a person; empty: nothing."""
    if not text or len(text) > LONGEST_SENTENCE:
        return f"{len(text)} characters"
    return f"control characters: {text[:200]!a}" if CONTROL.search(text) else ""


# --- settings -------------------------------------------------------------------------------------


def a_hami_file(value: str) -> str:
    return json.dumps({"nvidia": {"resourceCountName": value, "deviceSplitCount": value}})


def an_nvidia_file(value: str) -> str:
    one = {"name": "nvidia.com/gpu", "rename": value, "replicas": 2}
    return json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [one]}}})


def a_pattern_file(value: str) -> str:
    return json.dumps({"version": "v1", "resources": {"gpus": [{"pattern": "*", "name": value}]}})


def a_size_file(value: str) -> str:
    return json.dumps({"sizes": [{"name": value, "memory": value}]})


def a_version_file(value: str) -> str:
    return json.dumps({"version": value})


def bare(value: str) -> str:
    return value


FILES: dict[str, tuple[Callable[[str], str], str]] = {
    "HAMi's file": (a_hami_file, "hami"),
    "NVIDIA's file": (an_nvidia_file, "nvidia"),
    "NVIDIA's patterns": (a_pattern_file, "nvidia"),
    "sizes of slices": (a_size_file, "slices"),
    "a version": (a_version_file, "nvidia"),
    "a file that is only that": (bare, "hami"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_configuration_file_is_a_clear_error(tmp_path: Path, kind: str) -> None:
    """The program ends with exit code 2 and one line; of the rest the same code says so."""
    make, mode = FILES[kind]
    wrong = {}
    for value in HOSTILE.values():
        (file := tmp_path / "config.yaml").write_text(make(value))
        with pytest.raises(ConfigError) as refused:
            resolve({"node-name": "n", "mode": mode, "config-file": str(file)}, {})
        assert not unclear(str(refused.value))
    for what, value in WORST.items():
        (file := tmp_path / "config.yaml").write_text(make(value))
        flags = ["--node-name", "n", "--mode", mode, "--config-file", str(file)]
        done = subprocess.run(
            [*COMMAND, "config", *flags], capture_output=True, text=True, check=False, timeout=50
        )
        if done.returncode != 2 or unclear(done.stderr.strip()) or done.stderr.count("\n") > 2:
            wrong[what] = (done.returncode, done.stderr[-500:])
    assert wrong == {}


@pytest.mark.parametrize(
    "setting", ["--node-name", "--resource-name", "--state-dir", "--config-file"]
)
def test_a_hostile_flag_is_a_clear_error(setting: str) -> None:
    wrong = {}
    for what, value in WORST.items():
        if len(value) == MEBIBYTE:  # the kernel hands over 128 KiB at most
            value = value[: 100 << 10]  # noqa: PLW2901
        flags = [f"{setting}={value}", *(() if "node" in setting else ("--node-name=n",))]
        done = subprocess.run(
            [*COMMAND, "config", *flags], capture_output=True, text=True, check=False, timeout=50
        )
        if done.returncode != 2 or unclear(done.stderr.strip()):
            wrong[what] = (done.returncode, done.stderr[-500:])
    assert wrong == {}


# --- an agent that runs ----------------------------------------------------------------------------


def is_unharmed(node: SimNode) -> None:
    """It lives, has crashed nowhere, and its log is plain text."""
    assert node.agent is not None
    assert node.agent.poll() is None
    assert node.fetch("/healthz")[0] == 200
    log = node.log_text()
    assert "Traceback" not in log
    assert not [line[:200] for line in log.splitlines() if CONTROL.search(line)]
    assert not [len(line) for line in log.splitlines() if len(line) > 4 * LONGEST_SENTENCE]


def files_of(node: SimNode) -> set[str]:
    """Whatever there is on the host, but for what changes by itself."""
    tops = ("host", "state", "vgpulock", "run")
    return {str(path) for top in tops for path in (node.root / top).rglob("*")}


def refusals_of_ids(node: SimNode) -> dict[str, str]:
    """What is wrong with the answers to hostile device ids, by what they were."""
    wrong = {}
    (socket,) = node.kubelet.socket.parent.glob(f"{SOCKET_PREFIX}*.sock")
    channel = rpc.unix_channel(socket, max_receive_bytes=1 << 24)
    try:
        for what, value in HOSTILE.items():
            for ids in ([value], [f"{value}-0"], [f"{value}::1"], [value] * 3):
                container = dp.ContainerAllocateRequest(device_ids=ids)
                asked = dp.AllocateRequest(container_requests=[container])
                with pytest.raises(grpc.RpcError) as refused:
                    rpc.ALLOCATE.client(channel)(asked, timeout=30)
                if said := unclear(str(refused.value.details())):
                    wrong[what] = said
                choice = dp.ContainerPreferredAllocationRequest(
                    available_device_ids=ids, allocation_size=1
                )
                preferred = dp.PreferredAllocationRequest(container_requests=[choice])
                try:
                    rpc.GET_PREFERRED.client(channel)(preferred, timeout=30)
                except grpc.RpcError as error:
                    if said := unclear(str(error.details())):
                        wrong[f"{what}, preferred"] = said
    finally:
        channel.close()
    return wrong


def test_hostile_device_ids_are_clear_refusals(make_node: NodeMaker) -> None:
    node = make_node()
    before = files_of(node)
    assert refusals_of_ids(node) == {}
    assert files_of(node) == before
    is_unharmed(node)
    serves(node)


def test_hostile_device_ids_of_slices_are_clear_refusals(lone: LoneMaker) -> None:
    """Without a scheduler it is the ids alone that say what is asked for."""
    node = lone()
    before = files_of(node)
    assert refusals_of_ids(node) == {}
    assert files_of(node) == before
    is_unharmed(node)


def test_hostile_names_of_pods_reach_nothing_else(make_node: NodeMaker) -> None:
    """No API server lets them through; this one does."""
    node = make_node("--allocate-budget", "5s")
    before, wrong = files_of(node), {}
    for what, name in HOSTILE.items():
        odd = f"odd-{list(HOSTILE).index(what)}"
        for pod, uid, container in (
            (name, "", "main"),
            (odd, name, "main"),
            (f"{odd}-c", "", name),
        ):
            made_uid = node.create_pod(
                pod, [Ask(memory_mib=700, name=container)], node_name=node.name
            )
            answer = node.kubelet.admit(
                PodSpec(
                    uid=uid or made_uid, namespace="team", name=pod,
                    containers=[ContainerSpec(container, {node.resource: 1})],
                )
            )  # fmt: skip
            if answer.ok:
                wrong[what] = "it was given a GPU that no scheduler has decided on"
            elif said := unclear(answer.message):
                wrong[what] = said
            node.kubelet.remove(uid or made_uid)
    assert wrong == {}
    assert files_of(node) == before
    is_unharmed(node)
    up(node, 20)


REGIONS: dict[str, Callable[[], bytes]] = {
    "nothing but zeros": lambda: bytes(2031616 + 8192),
    "any bytes": lambda: bytes(range(256)) * 7969,
    "one byte": lambda: b"x",
    "a uuid that is a path": lambda: bytes(made(OURS, uuids=("../../../etc/passwd",) * 16)),
    "a uuid of control characters": lambda: bytes(made(OURS, uuids=("\x1b[2J\r\n\x07" * 9,))),
    "a uuid that is no text": lambda: bytes(made(OURS, uuids=("\u202e\U0001f4a3" * 13,))),
    "every process is everybody's": lambda: bytes(
        made(OURS, [MadeSlot(pid=1, host_pid=1, data=(1 << 64) - 1)] * 1024)
    ),
    "counters beyond any": lambda: bytes(
        made(OURS, charged_ns=(1 << 64) - 1, launches=(1 << 64) - 1, refusals=(1 << 64) - 1)
    ),
}


def test_a_hostile_region_is_told_of_and_no_more(make_node: NodeMaker) -> None:
    node = make_node("--accounting-interval", "0.3s", "--process-interval", "0.3s")
    asks = [Ask(memory_mib=700)]
    pod = node.run_pod("tenant", asks)
    assert pod.admitted.ok, pod.admitted.message
    (region,) = (node.root / "host").rglob("*.cache")
    seen = 0
    for what, content in REGIONS.items():
        region.write_bytes(content())
        scraped = node.fetch("/metrics")
        eventually(lambda: node.fetch("/metrics") != scraped, within_s=30)  # noqa: B023 - it is run at once
        status, metrics = node.fetch("/metrics")
        assert status == 200, what
        assert not CONTROL.search(metrics), what
        assert "passwd" not in metrics, what
        seen += 1
    assert seen == len(REGIONS)
    is_unharmed(node)
    serves(node)
