"""From claims to env, mounts and device nodes: HAMi's tables, row by row."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.domain.gpu import Gpu
from agent.domain.grant_plan import GrantPolicy, HostPaths, plan_grant
from agent.domain.grants import Claim, DeviceNode, Grant, Mount
from agent.domain.pods import Container
from agent.errors import MalformedAnnotation

A = Gpu(uuid="GPU-a", index=0, name="NVIDIA A40", memory_mib=46068, minor=3)
B = Gpu(uuid="GPU-b", index=1, name="NVIDIA A40", memory_mib=46068, minor=7)
PATHS = HostPaths(
    library="/host/vgpu/libvgpu.so.2",
    preload="/host/vgpu/ld.so.preload",
    cache_dir="/host/vgpu/containers/uid_main",
    lock_dir="/tmp/vgpulock",
)
LIMITS = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/1.cache",
}
ENVVAR = {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
MOUNTS = (
    Mount("/usr/local/vgpu/libvgpu.so", "/host/vgpu/libvgpu.so.2", read_only=True),
    Mount("/usr/local/vgpu", "/host/vgpu/containers/uid_main", read_only=False),
    Mount("/tmp/vgpulock", "/tmp/vgpulock", read_only=False),
    Mount("/etc/ld.so.preload", "/host/vgpu/ld.so.preload", read_only=True),
)
ROOT = "/var/run/nvidia-container-devices"


def plan(
    *gpus: Gpu,
    policy: GrantPolicy | None = None,
    paths: HostPaths = PATHS,
    control_disabled: str | None = None,
) -> Grant:
    cards = gpus or (A,)
    return plan_grant(
        Container(name="main", vgpus=len(cards), control_disabled=control_disabled),
        [Claim(gpu.uuid, "NVIDIA", 3000, 30) for gpu in cards],
        cards,
        paths=paths,
        cache_name="1.cache",
        policy=policy or GrantPolicy(),
    )


def test_the_plain_grant() -> None:
    assert plan() == Grant(envs=ENVVAR | LIMITS, mounts=MOUNTS)


def test_limits_are_mounted_where_the_hook_looks() -> None:
    paths = replace(PATHS, limits="/host/vgpu/limits/uid_main")
    limits = Mount("/etc/vgpu.limits", "/host/vgpu/limits/uid_main", read_only=True)
    assert plan(paths=paths).mounts == (*MOUNTS, limits)
    assert limits in plan(paths=paths, control_disabled="true").mounts
    off = plan(paths=paths, control_disabled="true", policy=GrantPolicy(allow_disable_control=True))
    assert limits not in off.mounts  # there is no hook


@pytest.mark.parametrize(
    ("policy", "extra"),
    [
        pytest.param(GrantPolicy(oversubscribed=True), {"CUDA_OVERSUBSCRIBE": "true"}, id="more memory"),
        pytest.param(GrantPolicy(hook_log_level="0"), {"LIBCUDA_LOG_LEVEL": "0"}, id="log level 0"),
        pytest.param(
            GrantPolicy(disable_core_limit=True),
            {"GPU_CORE_UTILIZATION_POLICY": "disable"},
            id="no core limit",
        ),
        pytest.param(GrantPolicy(gds_enabled=True), {"NVIDIA_GDS": "enabled"}, id="GDS"),
        pytest.param(GrantPolicy(mofed_enabled=True), {"NVIDIA_MOFED": "enabled"}, id="MOFED"),
        pytest.param(GrantPolicy(gdrcopy_enabled=True), {"NVIDIA_GDRCOPY": "enabled"}, id="GDRCopy"),
        pytest.param(
            GrantPolicy(device_id_strategy="index"), {"NVIDIA_VISIBLE_DEVICES": "0"}, id="by index"
        ),
    ],
)  # fmt: skip
def test_envs_of_a_policy(policy: GrantPolicy, extra: Mapping[str, str]) -> None:
    assert plan(policy=policy).envs == ENVVAR | LIMITS | extra


@pytest.mark.parametrize(
    ("gpus", "visible", "limits"),
    [
        pytest.param((B, A), "GPU-b,GPU-a", 2, id="in the order of the claims"),
        pytest.param((A, A), "GPU-a", 2, id="two vGPUs of one GPU: named once, limited twice"),
        pytest.param((A, B, A), "GPU-a,GPU-b", 3, id="three vGPUs of two GPUs"),
    ],
)
def test_several_vgpus(gpus: tuple[Gpu, ...], visible: str, limits: int) -> None:
    envs = plan(*gpus).envs
    assert envs["NVIDIA_VISIBLE_DEVICES"] == visible
    assert sum(name.startswith("CUDA_DEVICE_MEMORY_LIMIT_") for name in envs) == limits


def test_limits_are_those_of_each_claim_and_cores_those_of_the_first() -> None:
    grant = plan_grant(
        Container(name="main", vgpus=2),
        [Claim("GPU-b", "NVIDIA", 0, 0), Claim("GPU-a", "NVIDIA", 4096, 70)],
        (B, A),
        paths=PATHS,
        cache_name="1.cache",
        policy=GrantPolicy(),
    )
    assert grant.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "0m"
    assert grant.envs["CUDA_DEVICE_MEMORY_LIMIT_1"] == "4096m"
    assert grant.envs["CUDA_DEVICE_SM_LIMIT"] == "0"


@pytest.mark.parametrize("strategy", [("volume-mounts",), ("envvar", "volume-mounts")])
def test_volume_mounts(strategy: tuple[str, ...]) -> None:
    grant = plan(B, A, policy=GrantPolicy(device_list_strategy=strategy))
    assert grant.envs["NVIDIA_VISIBLE_DEVICES"] == ROOT
    assert grant.mounts[:2] == (
        Mount(f"{ROOT}/GPU-b", "/dev/null", read_only=False),
        Mount(f"{ROOT}/GPU-a", "/dev/null", read_only=False),
    )
    assert grant.mounts[2:] == MOUNTS


CDI = "k8s.device-plugin.nvidia.com"
BY_CDI = ("cdi-annotations",), ("cdi-cri",)


@pytest.mark.parametrize(
    ("policy", "annotations", "devices"),
    [
        pytest.param({"device_list_strategy": BY_CDI[0]}, {"cdi.k8s.io/nvidia-device-plugin_1": f"{CDI}/gpu=GPU-b,{CDI}/gpu=GPU-a"}, (), id="annotations"),
        pytest.param({"device_list_strategy": BY_CDI[0], "cdi_annotation_prefix": "x.io/"}, {"x.io/nvidia-device-plugin_1": f"{CDI}/gpu=GPU-b,{CDI}/gpu=GPU-a"}, (), id="another prefix"),
        pytest.param({"device_list_strategy": BY_CDI[1]}, {}, (f"{CDI}/gpu=GPU-b", f"{CDI}/gpu=GPU-a"), id="the CRI's field"),
        pytest.param({"device_list_strategy": BY_CDI[1], "device_id_strategy": "index"}, {}, (f"{CDI}/gpu=1", f"{CDI}/gpu=0"), id="by index"),
        pytest.param({"device_list_strategy": BY_CDI[1], "imex_channels": (0,), "gds_enabled": True}, {}, (f"{CDI}/gpu=GPU-b", f"{CDI}/gpu=GPU-a", f"{CDI}/imex-channel=0", f"{CDI}/gds=all"), id="with more"),
        pytest.param({"device_list_strategy": BY_CDI[1], "gds_enabled": True, "cdi_absent": frozenset({"gds"})}, {}, (f"{CDI}/gpu=GPU-b", f"{CDI}/gpu=GPU-a"), id="not what the node has not"),
    ],
)  # fmt: skip
def test_cdi_names_devices_and_nothing_else_does(
    policy: dict[str, Any], annotations: Mapping[str, str], devices: tuple[str, ...]
) -> None:
    grant = plan(B, A, policy=GrantPolicy(pass_device_specs=True, **policy))
    assert (dict(grant.annotations), grant.cdi_devices) == (dict(annotations), devices)
    assert "NVIDIA_VISIBLE_DEVICES" not in grant.envs
    assert "NVIDIA_GDS" not in grant.envs
    assert (grant.mounts, grant.device_nodes) == (MOUNTS, ()), "the hook is mounted all the same"


def test_cdi_beside_a_variable_is_both() -> None:
    grant = plan(policy=GrantPolicy(device_list_strategy=("envvar", "cdi-cri")))
    assert grant.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a"
    assert grant.cdi_devices == (f"{CDI}/gpu=GPU-a",)


@pytest.mark.parametrize(
    ("strategy", "envs", "mount"),
    [
        pytest.param("envvar", {"NVIDIA_IMEX_CHANNELS": "0"}, "", id="envvar"),
        pytest.param("volume-mounts", {}, f"{ROOT}/imex/0", id="volume-mounts"),
    ],
)
def test_imex_channels(strategy: str, envs: Mapping[str, str], mount: str) -> None:
    policy = GrantPolicy(
        device_list_strategy=(strategy,), imex_channels=(0,), pass_device_specs=True
    )
    grant = plan(policy=policy)
    assert {name: grant.envs[name] for name in grant.envs if "IMEX" in name} == dict(envs)
    assert [m.container_path for m in grant.mounts if "imex" in m.container_path] == (
        [mount] if mount else []
    )
    assert grant.device_nodes[-1].container_path == "/dev/nvidia-caps-imex-channels/channel0"


def test_paths_of_the_container_can_be_moved() -> None:
    grant = plan(policy=GrantPolicy(hook_dir="/opt/hook/vgpu", lock_dir="/run/lock"))
    assert [mount.container_path for mount in grant.mounts] == [
        "/opt/hook/vgpu/libvgpu.so",
        "/opt/hook/vgpu",
        "/run/lock",
        "/etc/ld.so.preload",
    ]
    assert grant.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/opt/hook/vgpu/1.cache"


@pytest.mark.parametrize(
    ("license_path", "validator", "extra"),
    [
        pytest.param("", "", (), id="neither"),
        pytest.param(
            "/host/vgpu/license",
            "/host/vgpu/vgpuvalidator",
            (
                Mount("/tmp/license", "/host/vgpu/license"),
                Mount("/usr/bin/vgpuvalidator", "/host/vgpu/vgpuvalidator"),
            ),
            id="both",
        ),
        pytest.param("", "/host/vgpu/vgpuvalidator", (), id="a validator alone is not mounted"),
    ],
)
def test_license(license_path: str, validator: str, extra: tuple[Mount, ...]) -> None:
    grant = plan(paths=replace(PATHS, license=license_path, validator=validator))
    assert grant.mounts == MOUNTS + extra


@pytest.mark.parametrize(
    ("value", "allowed", "preloaded"),
    [
        pytest.param(None, True, True, id="not set"),
        *(
            pytest.param(value, True, False, id=f"{value} is true")
            for value in ("1", "t", "T", "TRUE", "true", "True")
        ),
        *(
            pytest.param(value, True, True, id=f"{value!r} is not true")
            for value in ("", "0", "false", "yes", "tRUE", " true", "on")
        ),
        pytest.param("true", False, True, id="the node does not allow it, by default"),
    ],
)
def test_the_author_switches_the_limits_off(
    value: str | None, *, allowed: bool, preloaded: bool
) -> None:
    policy = GrantPolicy(allow_disable_control=True) if allowed else GrantPolicy()
    mounts = plan(policy=policy, control_disabled=value).mounts
    assert ("/etc/ld.so.preload" in {mount.container_path for mount in mounts}) is preloaded
    assert len(mounts) == (4 if preloaded else 3)


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [
        pytest.param(GrantPolicy(), (), id="not asked for"),
        pytest.param(
            GrantPolicy(pass_device_specs=True),
            (
                DeviceNode("/dev/nvidiactl", "/dev/nvidiactl"),
                DeviceNode("/dev/nvidia7", "/dev/nvidia7"),
                DeviceNode("/dev/nvidia3", "/dev/nvidia3"),
            ),
            id="passed",
        ),
        pytest.param(
            GrantPolicy(pass_device_specs=True, dev_root="/run/nvidia/driver/"),
            (
                DeviceNode("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"),
                DeviceNode("/dev/nvidia7", "/run/nvidia/driver/dev/nvidia7"),
                DeviceNode("/dev/nvidia3", "/run/nvidia/driver/dev/nvidia3"),
            ),
            id="below the dev root",
        ),
    ],
)
def test_device_nodes(policy: GrantPolicy, nodes: tuple[DeviceNode, ...]) -> None:
    paths = replace(PATHS, device_nodes=("/dev/nvidiactl",))
    grant = plan(B, A, B, policy=policy, paths=paths)
    assert grant.device_nodes == nodes
    assert all(node.permissions == "rw" for node in grant.device_nodes)


def test_a_gpu_without_a_minor_number_has_no_node_of_its_own() -> None:
    grant = plan(replace(A, minor=None), policy=GrantPolicy(pass_device_specs=True))
    assert grant.device_nodes == ()


@pytest.mark.parametrize(
    "claim",
    [
        pytest.param(Claim("GPU-a", "NVIDIA", -1, 30), id="memory"),
        pytest.param(Claim("GPU-a", "NVIDIA", 1, -30), id="cores"),
    ],
)
def test_a_negative_limit_is_refused(claim: Claim) -> None:
    with pytest.raises(MalformedAnnotation, match="negative limit would be no limit"):
        plan_grant(
            Container(name="main", vgpus=1),
            [claim],
            [A],
            paths=PATHS,
            cache_name="1.cache",
            policy=GrantPolicy(),
        )
