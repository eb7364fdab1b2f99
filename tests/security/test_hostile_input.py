"""Paths, control characters, a mebibyte, unicode: as a setting, a device id, a pod's name, a region.

Against the agent as a process: nothing comes of it but a clear error.
"""

import json
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from made_regions import DEVICES_AT, OURS, TAIL_AT, MadeSlot, made, put_slot

from agent.adapters.kubelet import SOCKET_PREFIX
from agent.errors import ConfigError
from agent.settings.resolve import resolve
from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.sim.node import Ask, RanPod, SimNode
from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc
from tests.e2e.conftest import COMMAND, NodeMaker
from tests.e2e.test_slices import LoneMaker, lone
from tests.e2e.whole import serves, up
from tests.faults.conftest import make_node
from tests.security.recorded_writes import UNGUESSABLE
from tests.waiting import eventually

__all__ = ["lone", "make_node"]
pytestmark = pytest.mark.timeout(600)

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


# How each is written, for which mode, and what is said of it.
FILES: dict[str, tuple[Callable[[str], str], str, str]] = {
    "HAMi's file": (
        a_hami_file, "hami",
        "nvidia.resourceCountName is .*(kubelet takes only names like|has control characters)",
    ),
    "NVIDIA's file": (
        an_nvidia_file, "nvidia", r"resources\[0\].rename must be the name of a resource",
    ),
    "NVIDIA's patterns": (
        a_pattern_file, "nvidia", r"gpus\[0\].name must be the name of a resource",
    ),
    "sizes of slices": (a_size_file, "slices", "is no size; write sizes like"),
    "a version": (a_version_file, "nvidia", "but only 'v1' of NVIDIA's .* file is known"),
    "a file that is only that": (bare, "hami", "must be a mapping of keys|is not usable YAML"),
}  # fmt: skip
CONTROL_OR_LONG = "but it is longer than 4096 characters or has control characters; shorten it"
TOO_LONG = "has more than 1048576 bytes|must be a mapping of keys"


@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_configuration_file_is_a_clear_error(tmp_path: Path, kind: str) -> None:
    """The program ends with exit code 2 and one line; of the rest the same code says so."""
    make, mode, words = FILES[kind]
    wrong = {}
    for what, value in HOSTILE.items():
        told = TOO_LONG if what == "a mebibyte" else words
        (file := tmp_path / "config.yaml").write_text(make(value))
        with pytest.raises(ConfigError, match=told) as refused:
            resolve({"node-name": "n", "mode": mode, "config-file": str(file)}, {})
        assert not unclear(str(refused.value))
        assert "config.yaml" in str(refused.value)
    for what, value in WORST.items():
        (file := tmp_path / "config.yaml").write_text(make(value))
        flags = ["--node-name", "n", "--mode", mode, "--config-file", str(file)]
        done = subprocess.run(
            [*COMMAND, "config", *flags], capture_output=True, text=True, check=False, timeout=250
        )
        said = re.search(TOO_LONG if what == "a mebibyte" else words, done.stderr)
        if (
            done.returncode != 2
            or not said
            or unclear(done.stderr.strip())
            or done.stderr.count("\n") > 2
        ):
            wrong[what] = (done.returncode, done.stderr[-500:])
    assert wrong == {}
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


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
            [*COMMAND, "config", *flags], capture_output=True, text=True, check=False, timeout=250
        )
        told = f"vgpu-agent: {setting} is '" in done.stderr and CONTROL_OR_LONG in done.stderr
        if done.returncode != 2 or not told or unclear(done.stderr.strip()):
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
    found = [path for top in tops for path in (node.root / top).rglob("*")]
    return {str(p) for p in found if p.name != "totals.json" and not UNGUESSABLE.fullmatch(p.name)}


def refused(channel: grpc.Channel, asked: dp.AllocateRequest) -> str:
    """Why; asked again where a busy machine was too slow to say it."""
    for _ in range(10):
        with pytest.raises(grpc.RpcError) as error:
            rpc.ALLOCATE.client(channel)(asked, timeout=60)
        if error.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            break
    return str(error.value.details())


def refusals_of_ids(node: SimNode, words: str) -> dict[str, str]:
    """What is wrong with the answers to hostile device ids, by what they were."""
    wrong = {}
    (socket,) = node.kubelet.socket.parent.glob(f"{SOCKET_PREFIX}*.sock")
    channel = rpc.unix_channel(socket, max_receive_bytes=1 << 24)
    try:
        for what, value in HOSTILE.items():
            for ids in ([value], [f"{value}-0"], [f"{value}::1"], [value] * 3):
                container = dp.ContainerAllocateRequest(device_ids=ids)
                asked = dp.AllocateRequest(container_requests=[container])
                details = refused(channel, asked)
                if said := unclear(details) or ("" if words in details else details):
                    wrong[what] = said
                choice = dp.ContainerPreferredAllocationRequest(
                    available_device_ids=ids, allocation_size=1
                )
                preferred = dp.PreferredAllocationRequest(container_requests=[choice])
                try:
                    rpc.GET_PREFERRED.client(channel)(preferred, timeout=60)
                except grpc.RpcError as error:
                    if said := unclear(str(error.details())):
                        wrong[f"{what}, preferred"] = said
    finally:
        channel.close()
    return wrong


def test_hostile_device_ids_are_clear_refusals(make_node: NodeMaker) -> None:
    node = make_node()
    before = files_of(node)
    words = f"no pod on node {node.name} is waiting for "  # the ids themselves mean nothing here
    assert refusals_of_ids(node, words) == {}
    assert files_of(node) == before
    is_unharmed(node)
    serves(node)


def test_hostile_device_ids_of_slices_are_clear_refusals(lone: LoneMaker) -> None:
    """Without a scheduler it is the ids alone that say what is asked for."""
    node = lone()
    before = files_of(node)
    assert refusals_of_ids(node, "which is none of this node's: a GPU was removed") == {}
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


def given_to(node: SimNode, pod: str, container: str) -> RanPod:
    """A pod that the scheduler has decided on, as HAMi's does without looking at names."""
    asks = [Ask(memory_mib=100, name=container)]
    uid = node.create_pod(pod, asks)
    node.place_pod(pod, asks)
    return node.offer(pod, uid, asks)


def test_a_hostile_name_that_was_decided_on_reaches_no_path(make_node: NodeMaker) -> None:
    """A pod's name is no part of any; one of a container would be, and so it is refused."""
    node = make_node("--allocate-budget", "9s")
    names = {what: name for what, name in HOSTILE.items() if len(name) < MEBIBYTE}
    uids: set[str] = set()
    for number, (what, name) in enumerate(HOSTILE.items()):
        refused = given_to(node, f"odd-{number}", name).admitted
        assert not refused.ok, what
        assert "cannot be the name of a directory; use letters" in refused.message, what
        assert not unclear(refused.message), what
    assert made_for_containers(node) == set()
    for name in names.values():
        pod = given_to(node, name, "main")
        assert pod.admitted.ok, pod.admitted.message
        uids.add(pod.uid)
    assert {path.name.partition("_")[0] for path in made_for_containers(node)} == uids
    eventually(lambda: all(shown_as(name) in node.log_text() for name in names.values()))
    is_unharmed(node)


def made_for_containers(node: SimNode) -> set[Path]:
    return {
        path
        for name in ("containers", "limits")
        for path in (node.root / "host/vgpu" / name).glob("*")
    }


def shown_as(name: str) -> str:
    """A pod's name as the log has it: in quotes, and with nothing that acts on a terminal."""
    return f"pod=team/{name}" if "/" in name else json.dumps(f"team/{name}")


def uuid_of(text: str) -> Callable[[bytearray], None]:
    """Have the first GPU of a region be called that."""

    def change(region: bytearray) -> None:
        name = text.encode()[:96]
        region[OURS.uuids : OURS.uuids + 96] = name.ljust(96, b"\0")

    return change


def replaced(by: bytes) -> Callable[[bytearray], None]:
    def change(region: bytearray) -> None:
        region[:] = by

    return change


def everybodys(region: bytearray) -> None:
    for index in range(1024):
        put_slot(region, OURS, index, MadeSlot(pid=1, host_pid=1, data=BEYOND))
    struct.pack_into("<i", region, OURS.trailer, 1024)


def beyond_any(region: bytearray) -> None:
    struct.pack_into("<Q", region, TAIL_AT + 16, BEYOND)
    struct.pack_into("<7Q", region, DEVICES_AT, *[BEYOND] * 7)
    struct.pack_into("<3Q", region, DEVICES_AT + 80, *[BEYOND] * 3)


BEYOND = (1 << 64) - 1
GPU_GONE = "it does not count the granted gpu-"
# What is made of the container's own region; as what it is rejected, and in which words.
REGIONS: dict[str, tuple[Callable[[bytearray], None], str, str]] = {
    "nothing but zeros": (replaced(bytes(OURS.size)), "wiped", "its beginning was wiped out"),
    "any bytes": (
        replaced(bytes(range(256)) * 7969), "foreign",
        "it is no usage region: magic 50462976 is not 19920718",
    ),
    "one byte": (replaced(b"x"), "short", "it is no usage region: 1 bytes, but the shortest"),
    "another region": (
        replaced(bytes(made(OURS))), "exchanged", "its content was exchanged for another region's",
    ),
    "a uuid that is a path": (uuid_of("../../../etc/passwd"), "gpu missing", GPU_GONE),
    "a uuid of control characters": (uuid_of("\x1b[2J\r\n\x07" * 9), "gpu missing", GPU_GONE),
    "a uuid that is no text": (uuid_of("\u202e\U0001f4a3" * 13), "gpu missing", GPU_GONE),
}  # fmt: skip
A_DAY_S = 86400


def was_read(node: SimNode) -> bool:
    """Whether the container's region, rejected until now, is its own again."""
    return 'recovered in=accounting failure="usage region rejected"' in node.log_text()


def peak_was_read(node: SimNode) -> bool:
    return figure(node, "vgpu_container_memory_peak_bytes") > 0


def figure(node: SimNode, name: str) -> float:
    """What the metrics say of the only container there is."""
    (line,) = [one for one in node.fetch("/metrics")[1].splitlines() if one.startswith(f"{name}{{")]
    return float(line.rpartition(" ")[2])


def rejections(node: SimNode) -> dict[str, float]:
    """How often a region was rejected, by reason."""
    status, metrics = node.fetch("/metrics")
    assert status == 200
    assert not CONTROL.search(metrics)
    assert "passwd" not in metrics
    lines = [
        line for line in metrics.splitlines() if line.startswith("vgpu_region_rejected_total{")
    ]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_hostile_region_is_told_of_and_no_more(make_node: NodeMaker) -> None:
    """As what it is rejected is counted, and said in words; nothing is written anywhere else.

    A region that is the right one but for its figures is read, and not believed beyond what can be.
    """
    node = make_node("--accounting-interval", "0.3s", "--process-interval", "0.3s")
    pod = node.run_pod("tenant", [Ask(memory_mib=700)])
    assert pod.admitted.ok, pod.admitted.message
    (region,) = (node.root / "host").rglob("*.cache")
    good, before = region.read_bytes(), files_of(node)
    for what, (change, reason, words) in REGIONS.items():
        change(content := bytearray(good))
        so_far = rejections(node).get(reason, 0)
        region.write_bytes(content)
        eventually(lambda: rejections(node).get(reason, 0) > so_far, within_s=60, what=what)  # noqa: B023 - it is run at once
        eventually(lambda: words in node.log_text(), within_s=60, what=f"{what}: {words}")  # noqa: B023 - likewise
        assert files_of(node) == before, what
    so_far = rejections(node)
    for change, is_read in ((everybodys, was_read), (beyond_any, peak_was_read)):
        change(content := bytearray(good))
        region.write_bytes(content)
        eventually(lambda: is_read(node), within_s=60, what=change.__name__)  # noqa: B023 - likewise
        assert figure(node, "vgpu_container_memory_used_bytes") == 0
        for of_time in ("gpu_seconds_total", "throttled_seconds_total"):
            assert figure(node, f"vgpu_container_{of_time}") < A_DAY_S, "2**64 ns are centuries"
        assert files_of(node) == before
    assert rejections(node) == so_far
    is_unharmed(node)
    serves(node)
