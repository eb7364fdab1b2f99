"""Settings, from where an operator writes them to what kubelet, scheduler and containers see."""

import json
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, SimNode
from agent.sim.scheduler import REGISTER, SCORE
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import up
from tests.waiting import eventually

FIRST, SECOND = made_up_uuid(0), made_up_uuid(1)


def registered(node: SimNode) -> dict[str, int]:
    """The memory of each GPU that the scheduler is offered, in MiB, by uuid."""
    return {gpu["id"]: gpu["devmem"] for gpu in json.loads(node.annotations()[REGISTER])}


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        pytest.param(["--hook-path", "/opt/hook"], {}, id="flag"),
        pytest.param([], {"HOOK_PATH": "/opt/hook"}, id="HAMi's HOOK_PATH"),
    ],
)
def test_the_hooks_place_in_containers_can_be_moved(
    make_node: NodeMaker, flags: list[str], environ: dict[str, str]
) -> None:
    node = make_node(*flags, environ=environ)
    grant = node.run_pod("pod", [Ask()]).admitted.containers["main"]
    assert grant.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"].startswith("/opt/hook/vgpu/")
    assert [mount.container_path for mount in grant.mounts] == [
        "/opt/hook/vgpu/libvgpu.so",
        "/opt/hook/vgpu",
        "/tmp/vgpulock",
        "/etc/ld.so.preload",
        "/etc/vgpu.limits",
    ]
    preload = node.root / "host" / "vgpu" / "ld.so.preload"
    assert preload.read_text().split() == ["/opt/hook/vgpu/libvgpu.so"]


@pytest.mark.parametrize(
    ("flags", "before"),
    [
        pytest.param([], None, id="where there is none"),
        pytest.param(["--hami-library", "replace"], b"HAMi's own", id="in place of another"),
    ],
)
def test_the_library_has_hamis_name_too(
    make_node: NodeMaker, flags: list[str], before: bytes | None
) -> None:
    node = make_node(started=False)
    plain = node.root / "host" / "vgpu" / "libvgpu.so"
    if before is not None:
        plain.write_bytes(before)
    node.start_agent(*flags)
    up(node, 20)
    grant = node.run_pod("pod", [Ask()]).admitted.containers["main"]
    (library,) = (Path(m.host_path) for m in grant.mounts if m.container_path.endswith(plain.name))
    assert library.name != plain.name, "containers are given the file that is never rewritten"
    eventually(lambda: plain.exists() and plain.read_bytes() == library.read_bytes())


def test_the_files_of_an_existing_installation_are_obeyed(make_node: NodeMaker) -> None:
    node = make_node(started=False)
    config, override = node.root / "device-config.yaml", node.root / "config.json"
    config.write_text(
        "nvidia:\n"
        "  resourceCountName: nvidia.com/gpu\n"
        "  resourceMemoryName: nvidia.com/gpumem\n"
        "  deviceSplitCount: 4\n"
        "  deviceMemoryScaling: 1.5\n"
        "  disableCoreLimit: true\n"
    )
    override.write_text(
        json.dumps({"nodeconfig": [{"name": node.name, "devicesplitcount": 5, "libcudaloglevel": "3"}]})
    )  # fmt: skip
    node.flags = ["--probe-interval", "0.5s"]  # no flag that outranks the files
    node.start_agent("--config-file", str(config), "--node-config-file", str(override))
    up(node, 10)
    assert registered(node) == {FIRST: 69102, SECOND: 69102}
    env = node.run_pod("pod", [Ask()]).admitted.containers["main"].env
    assert env["CUDA_OVERSUBSCRIBE"] == "true"
    assert env["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert env["LIBCUDA_LOG_LEVEL"] == "3"


@pytest.mark.parametrize(
    ("flags", "offered"),
    [
        pytest.param([], {FIRST: 46068}, id="left out"),
        pytest.param(
            ["--preconfigured-device-memory", "8192"],
            {FIRST: 46068, SECOND: 8192},
            id="preconfigured",
        ),
        pytest.param(
            ["--preconfigured-device-memory", "8192", "--device-memory-scaling", "2"],
            {FIRST: 92136, SECOND: 16384},
            id="preconfigured and scaled",
        ),
    ],
)
def test_a_gpu_whose_driver_does_not_tell_its_memory(
    make_node: NodeMaker, flags: list[str], offered: dict[str, int]
) -> None:
    """Unified memory, as on GB10."""
    node = make_node(*flags, started=False)
    node.driver.change_gpu(1, SimGpu(uuid=SECOND, name="NVIDIA GB10", memory_mib=None))
    node.start_agent()
    up(node, 10 * len(offered))
    assert registered(node) == offered


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--filter-device-indices", "0"], id="by index"),
        pytest.param(["--filter-device-uuids", FIRST], id="by uuid"),
    ],
)
def test_a_gpu_that_is_filtered_out_is_offered_to_nobody(
    make_node: NodeMaker, flags: list[str]
) -> None:
    node = make_node(*flags, started=False)
    node.start_agent()
    up(node, 10)
    assert registered(node) == {SECOND: 46068}


def test_the_resource_can_have_another_name(make_node: NodeMaker) -> None:
    node = make_node("--resource-name", "example.com/vgpu", started=False)
    node.start_agent()
    eventually(lambda: node.kubelet.node_status().allocatable == {"example.com/vgpu": 20})


def test_pair_scores_are_published_when_they_are_wanted(make_node: NodeMaker) -> None:
    node = make_node("--clean-exit", environ={"ENABLE_TOPOLOGY_SCORE": "true"})
    assert json.loads(node.annotations()[SCORE]) == [
        {"uuid": FIRST, "score": {SECOND: 20}},
        {"uuid": SECOND, "score": {FIRST: 20}},
    ]
    node.driver.nvlink(0, 1, 4)  # known when a GPU is found that was not there before
    node.driver.add_gpu(2)
    eventually(lambda: json.loads(node.annotations()[SCORE])[0]["score"].get(SECOND) == 420)
    assert node.scheduler.handshake_once(node.name) == "refreshed", node.scheduler.complaints
    assert node.stop_agent() == 0
    assert SCORE not in node.annotations()


def test_a_topology_that_cannot_be_read_takes_no_gpu_away(make_node: NodeMaker) -> None:
    node = make_node("--enable-topology-score", started=False)
    node.driver.fail("nvmlDeviceGetTopologyCommonAncestor", 999)
    node.start_agent()
    up(node, 20)
    assert json.loads(node.annotations()[SCORE]) == [{"uuid": FIRST}, {"uuid": SECOND}]


def test_json_logs_are_json_to_the_last_line(make_node: NodeMaker) -> None:
    node = make_node("--log-format", "json", "--log-level", "debug")
    node.run_pod("pod", [Ask()])
    node.offer("stray", node.create_pod("stray", [Ask()]), [Ask()])
    assert node.stop_agent() == 0
    lines = [json.loads(line) for line in node.log_text().splitlines()]
    assert all("event" in line for line in lines)
