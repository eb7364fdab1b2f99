"""docs/migrate.md: every setting of each peer is named, and what is said of it is tried."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.domain.slice_sizes import SliceSize
from agent.errors import ConfigError
from agent.settings import Resolution, resolve
from agent.settings.manual import flags_of
from agent.settings.table import SETTINGS

PAGE = Path(__file__).parents[2] / "docs/migrate.md"
HAMI, VOLCANO = "From HAMi's device plugin", "From volcano-vgpu-device-plugin"
NVIDIA, SLICES = "From NVIDIA's k8s-device-plugin", "To slices, from any of them"
# What operators of each can set: flags, variables, keys of files, values of its chart.
SETTABLE = {
    HAMI: """
        --mig-strategy MIG_STRATEGY --fail-on-init-error --nvidia-driver-root --dev-root
        --pass-device-specs --device-list-strategy --device-id-strategy --gdrcopy-enabled
        --gds-enabled --mofed-enabled --kubelet-socket --config-file --cdi-annotation-prefix
        --nvidia-cdi-hook-path --driver-root-ctr-path --device-discovery-strategy
        --imex-channel-ids --imex-required -v --node-name --device-split-count
        --device-memory-scaling --device-cores-scaling --disable-core-limit --resource-name
        HOOK_PATH ENABLE_TOPOLOGY_SCORE DP_DISABLE_HEALTHCHECKS DP_ENABLE_HEALTHCHECKS
        NVIDIA_MIG_MONITOR_DEVICES HAMI_NODELOCK_EXPIRE HAMI_RESYNC_INTERVAL KUBECONFIG
        --metrics-bind-address --legacy-metrics CUDA_DISABLE_CONTROL
        resourceCountName resourceMemoryName resourceMemoryPercentageName resourceCoreName
        resourcePriorityName overwriteEnv defaultMemory defaultCores defaultGPUNum memoryFactor
        deviceSplitCount deviceMemoryScaling deviceCoreScaling preConfiguredDeviceMemory
        gpuCorePolicy libCudaLogLevel enableNumaTopology runtimeClassName disableCoreLimit
        migProfileAllowlist knownMigGeometries
        operatingmode devicememoryscaling devicecorescaling devicesplitcount
        preconfigureddevicememory libcudaloglevel enablenumatopology migstrategy filterdevices
        enablegetpreferredallocation""",
    VOLCANO: """
        --config-file --device-split-count --device-cores-scaling --gpu-memory-factor NODE_NAME
        HOOK_PATH deviceSplitCount deviceMemoryScaling deviceCoreScaling gpuMemoryFactor
        knownMigGeometries resourceCountName nodeconfig CUDA_DISABLE_CONTROL""",
    NVIDIA: """
        config.map config.name config.default config.fallbackStrategies compatWithCPUManager
        migStrategy failOnInitError deviceListStrategy deviceIDStrategy nvidiaDriverRoot
        gdrcopyEnabled gdsEnabled mofedEnabled deviceDiscoveryStrategy runtimeClassName
        nodeSelector affinity tolerations devicePlugin.enabled gfd.enabled nfd mps.root
        mps.enableHostPID cdi.nvidiaHookPath cdi.featureFlags allowDefaultNamespace""",
}


def section(title: str) -> str:
    _, _, rest = PAGE.read_text().partition(f"## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def blocks(title: str) -> list[Any]:
    """Its examples in YAML: the one before, and the one after."""
    return [
        yaml.safe_load(text)
        for text in re.findall(r"^```yaml\n(.*?)^```", section(title), re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize(
    ("title", "name"),
    [pytest.param(title, name, id=f"{title}: {name}")
     for title, names in SETTABLE.items() for name in names.split()],
)  # fmt: skip
def test_every_setting_of_the_peer_is_named(title: str, name: str) -> None:
    named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
    assert any(named.search(span) for span in re.findall(r"`+[^`]+`+", section(title)))


# --- before and after --------------------------------------------------------------------------


def settled(args: Sequence[str] = (), environ: Mapping[str, str] = {}, **files: Path) -> Resolution:
    """What the agent makes of a container's arguments and variables."""
    flags: dict[str, object] = {}
    by_flag = {flag: setting.name for setting in SETTINGS for flag in flags_of(setting)}
    for word in args:
        flag, _, value = word.partition("=")
        flags[by_flag[flag]] = value
    config = files.get("config")
    if config is not None:
        flags["config-file"] = str(config)
    nowhere = Path(__file__).parent / "none.json"
    return resolve(
        {"node-name": "n", **flags}, environ, node_config_file=files.get("node", nowhere)
    )


def of_container(part: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    return part["args"], {one["name"]: one.get("value", "n") for one in part["env"]}


def values(resolution: Resolution, *without: str) -> dict[str, str]:
    told = {one.setting.name: one.shown for one in resolution.effective}
    return {name: value for name, value in told.items() if name not in without}


@pytest.mark.parametrize(
    ("title", "mode", "differs"),
    [
        pytest.param(HAMI, "hami", (), id="HAMi"),
        pytest.param(VOLCANO, "volcano", ("hook-path",), id="Volcano: HOOK_PATH has a vgpu less"),
    ],
)
def test_after_is_what_before_was(
    tmp_path: Path, title: str, mode: str, differs: tuple[str, ...]
) -> None:
    (tmp_path / "device-config.yaml").write_text("nvidia: {deviceSplitCount: 7}\n")
    before, after = blocks(title)
    found = []
    for part in (before, after):
        args, environ = of_container(part)
        words = [word.replace("/device-config", f"{tmp_path}/device-config") for word in args]
        found.append(settled([w for w in words if w != "run"], {**environ, "VGPU_MODE": mode}))
    assert after["args"][0] == "run"
    first, second = (values(one, "config-file", *differs) for one in found)
    assert first == second


def test_nvidias_file_is_read_as_it_is(tmp_path: Path) -> None:
    before, _ = blocks(NVIDIA)
    path = tmp_path / "config.yaml"
    path.write_text(before["config"]["map"]["default"])
    environ = {"CONFIG_FILE": str(path), "DEVICE_LIST_STRATEGY": before["deviceListStrategy"]}
    config = settled((), {**environ, "VGPU_MODE": "nvidia"}).config
    assert config.mig_strategy == "mixed"
    assert config.time_slicing.resources[0].replicas == 4
    assert config.device_list_strategy == ("volume-mounts",)


# --- row by row --------------------------------------------------------------------------------

NODE_KEYS = [
    pytest.param("devicesplitcount", 3, "device-split-count", "3"),
    pytest.param("devicememoryscaling", 1.5, "device-memory-scaling", "1.5"),
    pytest.param("devicecorescaling", 2, "device-cores-scaling", "2"),
    pytest.param("operatingmode", "mig", "operating-mode", "mig"),
    pytest.param("preconfigureddevicememory", 9, "preconfigured-device-memory", "9"),
    pytest.param("enablenumatopology", True, "enable-numa-topology", "true"),
    pytest.param("libcudaloglevel", "4", "lib-cuda-log-level", "4"),
    pytest.param("enablenumatopology", False, "enable-numa-topology", "false"),
    pytest.param("filterdevices", {"index": [1]}, "filter-device-indices", "1"),
    pytest.param("enablegetpreferredallocation", False, "enable-get-preferred-allocation", "false"),
    pytest.param("migstrategy", "mixed", "node-mig-strategy", "mixed"),
]
FILE_KEYS = [
    pytest.param("deviceSplitCount", 3, "device-split-count", "3"),
    pytest.param("deviceMemoryScaling", 1.5, "device-memory-scaling", "1.5"),
    pytest.param("deviceCoreScaling", 2, "device-cores-scaling", "2"),
    pytest.param("preConfiguredDeviceMemory", 9, "preconfigured-device-memory", "9"),
    pytest.param("disableCoreLimit", True, "disable-core-limit", "true"),
    pytest.param("libCudaLogLevel", 3, "lib-cuda-log-level", "3"),
    pytest.param("enableNumaTopology", True, "enable-numa-topology", "true"),
    pytest.param("resourceCountName", "a.b/c", "resource-name", "a.b/c"),
]


@pytest.mark.parametrize("mode", ["hami", "volcano"])
@pytest.mark.parametrize(("key", "value", "name", "shown"), NODE_KEYS)
def test_keys_of_the_node_override(
    tmp_path: Path, mode: str, key: str, value: object, name: str, shown: str
) -> None:
    if (mode, key) == ("volcano", "operatingmode"):
        value = shown = "hami-core"  # MIG is not decided by Volcano here
    node = tmp_path / "config.json"
    node.write_text(json.dumps({"nodeconfig": [{"name": "n", key: value}]}))
    assert values(settled((), {"VGPU_MODE": mode}, node=node))[name] == shown


@pytest.mark.parametrize(("key", "value", "name", "shown"), FILE_KEYS)
def test_keys_of_hamis_file(tmp_path: Path, key: str, value: object, name: str, shown: str) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text(yaml.safe_dump({"nvidia": {key: value}}))
    assert values(settled(config=path))[name] == shown


def test_flags_of_hami_hold_here(tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia: {deviceSplitCount: 7}\n")
    given = settled(["--device-split-count=3"], config=path)
    assert values(given)["device-split-count"] == "3"


@pytest.mark.parametrize(
    ("environ", "node", "words"),
    [
        pytest.param({"MIG_STRATEGY": "mixed"}, {}, "set --mode nvidia", id="HAMi: MIG strategy"),
        pytest.param({}, {"operatingmode": "mps"}, "use hami-core", id="HAMi: mode mps"),
        pytest.param({"VGPU_MODE": "nvidia", "DEVICE_DISCOVERY_STRATEGY": "tegra"}, {}, "use nvml", id="NVIDIA: Tegra"),
        pytest.param({"VGPU_MODE": "nvidia", "IMEX_CHANNEL_IDS": "1"}, {}, "channel 0", id="NVIDIA: another IMEX channel"),
    ],
)  # fmt: skip
def test_what_is_refused(
    tmp_path: Path, environ: dict[str, str], node: dict[str, object], words: str
) -> None:
    override = tmp_path / "config.json"
    override.write_text(json.dumps({"nodeconfig": [{"name": "n", **node}]}))
    with pytest.raises(ConfigError, match=words):
        settled((), environ, node=override)


@pytest.mark.parametrize("title", [HAMI, VOLCANO])
def test_the_other_hook_path_is_warned_of(title: str) -> None:
    assert "/usr/local/vgpu" in section(title)
    mode = "volcano" if title == VOLCANO else "hami"
    notes = settled((), {"VGPU_MODE": mode, "HOOK_PATH": "/usr/local/vgpu"}).notes
    assert any(note.warning and "the directory above" in note.text for note in notes)


def test_volcanos_factor_and_default(tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia: {gpuMemoryFactor: 4, knownMigGeometries: []}\n")
    told = values(settled((), {"VGPU_MODE": "volcano"}, config=path))
    assert (told["gpu-memory-factor"], told["device-split-count"]) == ("4", "10")
    assert settled((), {"VGPU_MODE": "volcano"}).config.memory_factor == 0
    flags = settled(["--gpu-memory-factor=10"], {"VGPU_MODE": "volcano"}, config=path)
    assert values(flags)["gpu-memory-factor"] == "10"


@pytest.mark.parametrize(
    ("value", "variable", "given", "setting"),
    [
        pytest.param("migStrategy", "MIG_STRATEGY", "mixed", "mig-strategy"),
        pytest.param("failOnInitError", "FAIL_ON_INIT_ERROR", "false", "fail-on-init-error"),
        pytest.param("deviceListStrategy", "DEVICE_LIST_STRATEGY", "cdi-cri", "device-list-strategy"),
        pytest.param("deviceIDStrategy", "DEVICE_ID_STRATEGY", "index", "device-id-strategy"),
        pytest.param("nvidiaDriverRoot", "NVIDIA_DRIVER_ROOT", "/run/d", "nvidia-driver-root"),
        pytest.param("gdrcopyEnabled", "GDRCOPY_ENABLED", "true", "gdrcopy-enabled"),
        pytest.param("gdsEnabled", "GDS_ENABLED", "true", "gds-enabled"),
        pytest.param("mofedEnabled", "MOFED_ENABLED", "true", "mofed-enabled"),
        pytest.param("deviceDiscoveryStrategy", "DEVICE_DISCOVERY_STRATEGY", "nvml", "device-discovery-strategy"),
        pytest.param("compatWithCPUManager", "PASS_DEVICE_SPECS", "true", "pass-device-specs"),
        pytest.param("cdi.nvidiaHookPath", "NVIDIA_CDI_HOOK_PATH", "/opt/h", "nvidia-cdi-hook-path"),
        pytest.param("cdi.featureFlags", "CDI_FEATURE_FLAGS", "x", "cdi-feature-flags"),
        pytest.param("mps.root", "MPS_ROOT", "/run/m", "mps-root"),
    ],
)  # fmt: skip
def test_values_of_nvidias_chart(value: str, variable: str, given: str, setting: str) -> None:
    assert value in section(NVIDIA)
    assert values(settled((), {"VGPU_MODE": "nvidia", variable: given}))[setting] == given


def test_sizes_of_slices() -> None:
    (sizes,) = set(re.findall(r"`--slice-sizes ([^`]+)`", section(SLICES)))
    config = settled([f"--slice-sizes={sizes}"], {"VGPU_MODE": "slices"}).config
    assert config.slice_sizes == (SliceSize(name="small", memory_mib=8192, core_percent=25),)
