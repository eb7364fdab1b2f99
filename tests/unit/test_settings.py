"""Settings: every source, their precedence, and what is said about a value that cannot be."""

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import ALL_XIDS, IGNORED_XIDS, RULES, Config
from agent.domain.gpu import Sharing
from agent.errors import ConfigError
from agent.settings import Resolution, resolve
from agent.settings.files import MAX_BYTES, device_config, node_override
from agent.settings.kinds import XidList
from agent.settings.manual import as_json, document, listing
from agent.settings.resolve import ignored_xids
from agent.settings.table import BY_NAME, SETTINGS

NODE = "gpu-1"
ROOT = Path(__file__).parents[2]
Resolve = Callable[..., Resolution]


@pytest.fixture(name="settle")
def settle_in(tmp_path: Path) -> Resolve:
    """Resolve settings of a node of its own, with files made from the arguments."""

    def settle(
        flags: dict[str, object] | None = None,
        environ: dict[str, str] | None = None,
        config: str | None = None,
        override: object = None,
    ) -> Resolution:
        environ = {"NODE_NAME": NODE, **(environ or {})}
        node_file = tmp_path / "config.json"
        if config is not None:
            (tmp_path / "device-config.yaml").write_text(config)
            environ["CONFIG_FILE"] = str(tmp_path / "device-config.yaml")
        if override is not None:
            text = override if isinstance(override, str) else json.dumps(override)
            node_file.write_text(text)
        return resolve(flags or {}, environ, hostname=lambda: "Host-1", node_config_file=node_file)

    return settle


def entry(**keys: object) -> dict[str, object]:
    return {"nodeconfig": [{"name": NODE, **keys}]}


def field_of(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def note_texts(resolution: Resolution) -> str:
    return "\n".join(note.text for note in resolution.notes)


def origin_of(resolution: Resolution, name: str) -> str:
    return next(one.origin for one in resolution.effective if one.setting.name == name)


# --- the table -----------------------------------------------------------------------------------


def test_every_field_of_config_has_exactly_one_setting() -> None:
    fields = {field.name for field in dataclasses.fields(Config)} - {"sharing"}
    fields |= {f"sharing.{field.name}" for field in dataclasses.fields(Sharing)}
    combined = {"ignored_xids", "health_checks"}  # made of two settings
    assert sorted(s.field for s in SETTINGS if s.field) == sorted(fields - combined)


def test_no_name_means_two_settings() -> None:
    for names in (
        [name for s in SETTINGS for name in (s.name, *s.aliases)],
        [name for s in SETTINGS for name in s.environment],
        [s.hami for s in SETTINGS if s.hami],
        [s.nvidia for s in SETTINGS if s.nvidia],
        [s.node for s in SETTINGS if s.node],
    ):
        assert len(names) == len(set(names))


def test_every_rule_is_about_a_field() -> None:
    assert set(RULES) <= {s.field for s in SETTINGS}


def test_defaults_are_those_of_config(settle: Resolve) -> None:
    assert settle().config == Config(node_name=NODE)


def test_the_manual_is_current() -> None:
    """If not: python agent.py config --markdown > docs/configuration.md."""
    assert (ROOT / "docs" / "configuration.md").read_text() == document()


# --- names that existing installations use -------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "raw", "field", "value"),
    [
        pytest.param("device-split-count", "4", "sharing.split_count", 4, id="split count"),
        pytest.param("device-memory-scaling", "1.8", "sharing.memory_scaling", 1.8, id="memory"),
        pytest.param("device-cores-scaling", "2", "sharing.core_scaling", 2.0, id="cores"),
        pytest.param("disable-core-limit", "true", "disable_core_limit", True, id="core limit"),
        pytest.param("resource-name", "example.com/vgpu", "resource_name", "example.com/vgpu", id="resource"),
        pytest.param("node-name", "gpu-2", "node_name", "gpu-2", id="node"),
        pytest.param("kubelet-socket", "/k/kubelet.sock", "kubelet_socket", Path("/k/kubelet.sock"), id="kubelet"),
        pytest.param("dev-root", "", "dev_root", None, id="HAMi's empty default of the dev root"),
        pytest.param("device-list-strategy", ["envvar", "volume-mounts"], "device_list_strategy", ("envvar", "volume-mounts"), id="a flag given twice"),
        pytest.param("device-list-strategy", ["volume-mounts,envvar,volume-mounts"], "device_list_strategy", ("volume-mounts", "envvar"), id="a list"),
        pytest.param("cache-gc-after", "1h30m", "cache_gc_after_s", 5400.0, id="Go duration"),
        pytest.param("cache-gc-after", "90", "cache_gc_after_s", 90.0, id="seconds"),
        pytest.param("probe-interval", "1500ms", "probe_every_s", 1.5, id="milliseconds"),
        pytest.param("metrics-bind-address", "off", "metrics_address", "", id="no endpoint"),
        pytest.param("metrics-bind-address", "[::1]:0", "metrics_address", "[::1]:0", id="IPv6"),
        pytest.param("log-level", "5", "log_level", "debug", id="-v 5"),
        pytest.param("log-level", "2", "log_level", "info", id="-v 2"),
        pytest.param("log-level", "WARN", "log_level", "warning", id="level by its short name"),
        pytest.param("filter-device-indices", ["0,2"], "sharing.excluded_indices", frozenset({0, 2}), id="indices"),
    ],
)  # fmt: skip
def test_flags(settle: Resolve, flag: str, raw: object, field: str, value: object) -> None:
    assert field_of(settle({flag: raw}).config, field) == value


@pytest.mark.parametrize(
    ("name", "raw", "field", "value"),
    [
        pytest.param("MIG_STRATEGY", "none", "node_name", NODE, id="mig strategy none"),
        pytest.param("FAIL_ON_INIT_ERROR", "true", "fail_on_init_error", True, id="fail on init"),
        pytest.param("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver", "driver_root", Path("/run/nvidia/driver"), id="driver root"),
        pytest.param("NVIDIA_DEV_ROOT", "/run/nvidia", "dev_root", Path("/run/nvidia"), id="dev root"),
        pytest.param("PASS_DEVICE_SPECS", "1", "pass_device_specs", True, id="device specs"),
        pytest.param("DEVICE_LIST_STRATEGY", "volume-mounts", "device_list_strategy", ("volume-mounts",), id="list strategy"),
        pytest.param("DEVICE_ID_STRATEGY", "index", "device_id_strategy", "index", id="id strategy"),
        pytest.param("GDRCOPY_ENABLED", "T", "gdrcopy_enabled", True, id="gdrcopy"),
        pytest.param("GDS_ENABLED", "TRUE", "gds_enabled", True, id="gds"),
        pytest.param("MOFED_ENABLED", "yes", "mofed_enabled", True, id="mofed"),
        pytest.param("KUBELET_SOCKET", "/k.sock", "kubelet_socket", Path("/k.sock"), id="kubelet"),
        pytest.param("KUBELET_SOCKET", "", "kubelet_socket", Path("/var/lib/kubelet/device-plugins/kubelet.sock"), id="an empty variable is not set"),
        pytest.param("DEVICE_SPLIT_COUNT", "3", "sharing.split_count", 3, id="split count"),
        pytest.param("HOOK_PATH", "/opt", "hook_path", Path("/opt"), id="hook path"),
        pytest.param("KUBECONFIG", "/root/.kube/config", "kubeconfig", Path("/root/.kube/config"), id="kubeconfig"),
        pytest.param("HAMI_RESYNC_INTERVAL", "5m", "cache_gc_after_s", 300.0, id="resync interval"),
        pytest.param("ENABLE_TOPOLOGY_SCORE", "true", "topology_score", True, id="topology score"),
        pytest.param("ENABLE_TOPOLOGY_SCORE", "1", "topology_score", False, id="topology score must be exactly true"),
        pytest.param("VGPU_ENABLE_TOPOLOGY_SCORE", "1", "topology_score", True, id="our own name takes any switch"),
        pytest.param("VGPU_ALLOCATE_BUDGET", "1500ms", "allocate_budget_s", 1.5, id="every flag has a VGPU_ name"),
        pytest.param("NODE_NAME", "a.b-c", "node_name", "a.b-c", id="NODE_NAME"),
        pytest.param("DP_DISABLE_HEALTHCHECKS", "79, 48", "ignored_xids", IGNORED_XIDS | {79, 48}, id="more XIDs ignored"),
        pytest.param("DP_DISABLE_HEALTHCHECKS", "XIDS", "health_checks", False, id="health checks off"),
        pytest.param("DP_ENABLE_HEALTHCHECKS", "all", "ignored_xids", frozenset(), id="every XID counts"),
    ],
)  # fmt: skip
def test_environment(settle: Resolve, name: str, raw: str, field: str, value: object) -> None:
    assert field_of(settle(environ={name: raw}).config, field) == value


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        pytest.param({"NODE_NAME": "a", "NodeName": "b"}, "a", id="NODE_NAME before NodeName"),
        pytest.param({"NODE_NAME": "", "NodeName": "b"}, "b", id="NodeName"),
        pytest.param({"NODE_NAME": ""}, "host-1", id="the host name in lower case"),
    ],
)
def test_node_name(settle: Resolve, environ: dict[str, str], name: str) -> None:
    assert settle(environ=environ).config.node_name == name


def test_the_host_name_is_told_as_the_origin(settle: Resolve) -> None:
    assert "host name" in origin_of(settle(environ={"NODE_NAME": ""}), "node-name")


DEVICE_CONFIG = """
nvidia:
  resourceCountName: example.com/gpu
  resourceMemoryName: example.com/mem
  resourceMemoryPercentageName: example.com/mem-percentage
  resourceCoreName: example.com/cores
  memoryFactor: 256
  overwriteEnv: false
  deviceSplitCount: 7
  deviceMemoryScaling: 2
  deviceCoreScaling: 1.5
  preConfiguredDeviceMemory: 4096
  libCudaLogLevel: 3
  enableNumaTopology: true
  disableCoreLimit: true
  somethingNew: 1
  DeviceSplitCount: 1
hygon:
  resourceCountName: hygon.com/dcunum
"""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("resource_name", "example.com/gpu", id="resourceCountName"),
        pytest.param("gpumem_name", "example.com/mem", id="resourceMemoryName"),
        pytest.param(
            "gpumem_percentage_name",
            "example.com/mem-percentage",
            id="resourceMemoryPercentageName",
        ),
        pytest.param("gpucores_name", "example.com/cores", id="resourceCoreName"),
        pytest.param("gpumem_factor", 256, id="memoryFactor"),
        pytest.param("sharing.split_count", 7, id="deviceSplitCount"),
        pytest.param("sharing.memory_scaling", 2.0, id="deviceMemoryScaling"),
        pytest.param("sharing.core_scaling", 1.5, id="deviceCoreScaling"),
        pytest.param("sharing.preconfigured_memory_mib", 4096, id="preConfiguredDeviceMemory"),
        pytest.param("hook_log_level", "3", id="libCudaLogLevel as a number"),
        pytest.param("sharing.numa_hints", True, id="enableNumaTopology"),
        pytest.param("disable_core_limit", True, id="disableCoreLimit"),
    ],
)
def test_device_config(settle: Resolve, field: str, value: object) -> None:
    assert field_of(settle(config=DEVICE_CONFIG).config, field) == value


def test_a_name_that_kubelet_never_gets_may_be_longer_than_kubelets(settle: Resolve) -> None:
    name = "nvidia.machine-learning.platform.example.com/gpumem-percentage-of-one"
    config = settle(config=f"nvidia: {{resourceMemoryPercentageName: {name}}}").config
    assert (config.gpumem_percentage_name, len(name) > 63) == (name, True)


def test_foreign_keys_are_told(settle: Resolve) -> None:
    notes = note_texts(settle(config=DEVICE_CONFIG))
    assert "read by the scheduler: overwriteEnv" in notes
    assert "nobody reads: DeviceSplitCount, somethingNew (meant: deviceSplitCount?" in notes
    assert "sections for others, not read: hygon" in notes


NVIDIA_CONFIG = """
version: v1
flags:
  migStrategy: none
  failOnInitError: true
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot:
  gdsEnabled: true
  mofedEnabled: true
  gdrcopyEnabled: true
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [volume-mounts]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /opt/nvidia-ctk
  gfd:
    oneshot: false
imex:
  channelIDs: []
  required: false
"""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("fail_on_init_error", True, id="failOnInitError"),
        pytest.param("driver_root", Path("/run/nvidia/driver"), id="nvidiaDriverRoot"),
        pytest.param("dev_root", None, id="null is not set"),
        pytest.param("gds_enabled", True, id="gdsEnabled"),
        pytest.param("mofed_enabled", True, id="mofedEnabled"),
        pytest.param("gdrcopy_enabled", True, id="gdrcopyEnabled"),
        pytest.param("pass_device_specs", True, id="plugin.passDeviceSpecs"),
        pytest.param("device_list_strategy", ("volume-mounts",), id="a list of strategies"),
        pytest.param("device_id_strategy", "index", id="plugin.deviceIDStrategy"),
    ],
)
def test_nvidia_config(settle: Resolve, field: str, value: object) -> None:
    assert field_of(settle(config=NVIDIA_CONFIG).config, field) == value


def test_what_nvidia_has_and_we_do_not_is_told(settle: Resolve) -> None:
    notes = note_texts(settle(config=NVIDIA_CONFIG))
    assert "flags.gfd.oneshot" in notes
    assert "deviceDiscoveryStrategy changes nothing" not in notes, "it says what holds anyway"


def test_one_file_may_hold_both_forms(settle: Resolve) -> None:
    config = settle(config=DEVICE_CONFIG + NVIDIA_CONFIG).config
    assert (config.sharing.split_count, config.pass_device_specs) == (7, True)


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        pytest.param({"devicememoryscaling": 1.8}, "sharing.memory_scaling", 1.8, id="memory"),
        pytest.param({"DeviceSplitCount": 5}, "sharing.split_count", 5, id="keys in any case"),
        pytest.param({"devicecorescaling": 2}, "sharing.core_scaling", 2.0, id="cores"),
        pytest.param({"operatingmode": "hami-core"}, "sharing.mode", "hami-core", id="mode"),
        pytest.param({"operatingmode": ""}, "sharing.mode", "hami-core", id="empty mode: hami-core"),
        pytest.param({"libcudaloglevel": "4"}, "hook_log_level", "4", id="log level as text"),
        pytest.param({"libcudaloglevel": 4}, "hook_log_level", "4", id="log level as number"),
        pytest.param({"libcudaloglevel": ""}, "hook_log_level", "", id="an empty text overrides"),
        pytest.param({"enablenumatopology": False}, "sharing.numa_hints", False, id="false overrides"),
        pytest.param({"preconfigureddevicememory": 0}, "sharing.preconfigured_memory_mib", 0, id="zero overrides"),
        pytest.param({"devicesplitcount": 0}, "sharing.split_count", 7, id="a zero split count cannot be meant"),
        pytest.param({"devicememoryscaling": 0.0}, "sharing.memory_scaling", 2.0, id="nor a zero scaling"),
        pytest.param({"devicesplitcount": None}, "sharing.split_count", 7, id="null is not set"),
        pytest.param({"migstrategy": "none"}, "sharing.split_count", 7, id="mig strategy none"),
        pytest.param({"migstrategy": "mixed"}, "sharing.split_count", 7, id="a mig strategy, which HAMi ignores here"),
        pytest.param({"filterdevices": {"UUID": ["GPU-a"], "index": []}}, "sharing.excluded_uuids", frozenset({"GPU-a"}), id="filter by uuid"),
        pytest.param({"filterdevices": {"uuid": [], "Index": [0, 3]}}, "sharing.excluded_indices", frozenset({0, 3}), id="filter by index"),
        pytest.param({"filterdevices": None}, "sharing.excluded_indices", frozenset(), id="no filter"),
        pytest.param({"enablegetpreferredallocation": False}, "sharing.split_count", 7, id="preferred allocation"),
    ],
)  # fmt: skip
def test_node_override(settle: Resolve, keys: dict[str, object], field: str, value: object) -> None:
    assert field_of(settle(config=DEVICE_CONFIG, override=entry(**keys)).config, field) == value


@pytest.mark.parametrize(
    ("override", "split_count"),
    [
        pytest.param({"nodeconfig": [{"name": "other", "devicesplitcount": 3}]}, 10, id="another node"),
        pytest.param({"nodeconfig": [{"name": NODE, "devicesplitcount": 3}, {"name": NODE, "devicesplitcount": 4}]}, 4, id="the last entry wins"),
        pytest.param({"nodeconfig": [{"name": NODE, "devicesplitcount": 3}, {"name": NODE, "devicecorescaling": 2}]}, 3, id="key by key"),
        pytest.param({"nodeconfig": [{"name": "other", "operatingmode": "mig"}, None]}, 10, id="what another node does is not ours to judge"),
        pytest.param({"NodeConfig": [{"Name": NODE, "DEVICESPLITCOUNT": 3}]}, 3, id="any case"),
        pytest.param({}, 10, id="empty"),
        pytest.param({"nodeconfig": None}, 10, id="null"),
    ],
)  # fmt: skip
def test_entries(settle: Resolve, override: object, split_count: int) -> None:
    config = settle(override=override).config
    assert config.sharing.split_count == split_count
    assert config.sharing.mode == "hami-core"


def test_without_an_override_file_the_mode_is_hami_core(settle: Resolve) -> None:
    assert settle().config.sharing.mode == "hami-core"


# --- precedence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "value", "origin"),
    [
        pytest.param("fenc", 2, "flag --device-split-count", id="flag"),
        pytest.param("enc", 3, "environment DEVICE_SPLIT_COUNT", id="environment"),
        pytest.param("nc", 4, "node gpu-1, devicesplitcount", id="node override"),
        pytest.param("c", 5, "nvidia.deviceSplitCount", id="configuration file"),
        pytest.param("", 10, "default", id="default"),
    ],
)
def test_precedence(settle: Resolve, sources: str, value: int, origin: str) -> None:
    resolution = settle(
        {"device-split-count": "2"} if "f" in sources else {},
        {"DEVICE_SPLIT_COUNT": "3"} if "e" in sources else {},
        "nvidia: {deviceSplitCount: 5}" if "c" in sources else None,
        entry(devicesplitcount=4) if "n" in sources else None,
    )
    assert resolution.config.sharing.split_count == value
    assert origin in origin_of(resolution, "device-split-count")


def test_what_was_overruled_is_told(settle: Resolve) -> None:
    resolution = settle(
        {"device-split-count": "5"},
        {"VGPU_DEVICE_SPLIT_COUNT": "x", "DEVICE_SPLIT_COUNT": "3"},
        "nvidia: {deviceSplitCount: 5}",
    )
    one = next(e for e in resolution.effective if e.setting.name == "device-split-count")
    assert [text.partition(" from ")[0] for text in one.instead_of] == ["'x'", "3"]
    line = next(row for row in listing(resolution).splitlines() if "device-split-count" in row)
    assert "instead of 'x' from environment VGPU_DEVICE_SPLIT_COUNT; 3 from" in line


@pytest.mark.parametrize(
    ("disabled", "enabled", "ignored"),
    [
        pytest.param(XidList(), XidList(), IGNORED_XIDS, id="built in"),
        pytest.param(XidList(every=True), XidList(), ALL_XIDS, id="all off"),
        pytest.param(XidList(every=True), XidList(frozenset({79})), ALL_XIDS - {79}, id="all off, one on"),
        pytest.param(XidList(), XidList(frozenset({31})), IGNORED_XIDS - {31}, id="a built-in one on"),
        pytest.param(XidList(frozenset({79})), XidList(frozenset({79})), IGNORED_XIDS, id="enabled is stronger"),
        pytest.param(XidList(every=True), XidList(every=True), frozenset(), id="all on is strongest"),
    ],
)  # fmt: skip
def test_xids(disabled: XidList, enabled: XidList, ignored: frozenset[int]) -> None:
    assert ignored_xids(disabled, enabled) == ignored


def test_all_off_and_one_on_keeps_health_checks(settle: Resolve) -> None:
    environ = {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "79"}
    config = settle(environ=environ).config
    assert config.health_checks
    assert 79 not in config.ignored_xids
    assert 48 in config.ignored_xids


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "raw", "words"),
    [
        pytest.param("device-split-count", "0", "--device-split-count is '0', but it must be 1 to 65536", id="no vGPU at all"),
        pytest.param("device-split-count", "ten", "must be a whole number", id="a word"),
        pytest.param("device-split-count", "9" * 400, "must be a whole number", id="an endless number"),
        pytest.param("device-memory-scaling", "0", "0.01 to 100", id="no memory at all"),
        pytest.param("device-memory-scaling", "nan", "must be a number", id="not a number"),
        pytest.param("device-memory-scaling", "1e99", "0.01 to 100", id="a huge number"),
        pytest.param("device-memory-scaling", "-1", "0.01 to 100", id="negative"),
        pytest.param("mig-strategy", "single", "does not manage MIG; use none", id="MIG comes later"),
        pytest.param("mig-strategy", "singel", "the choices are none", id="a typing error in MIG"),
        pytest.param("operating-mode", "mps", "in mode nvidia only (sharing.mps); use hami-core", id="MPS"),
        pytest.param("mig-profile-allowlist", '[{"models":["A100"]}]', "needs models and profiles", id="MIG profiles of nothing"),
        pytest.param("mig-profile-allowlist", "1g.5gb", "it is no JSON", id="MIG profiles as words"),
        pytest.param("known-mig-geometries", "{}", "needs models and allowedGeometries", id="no geometries"),
        pytest.param("device-list-strategy", ["envvar,cdi"], "volume-mounts, cdi-annotations, cdi-cri", id="no such strategy"),
        pytest.param("device-list-strategy", [","], "it is empty; use envvar", id="no strategy"),
        pytest.param("device-discovery-strategy", "tegra", "through NVML alone", id="Tegra"),
        pytest.param("imex-channel-ids", ["0,1"], "have channel 0 for containers", id="IMEX channels that no driver has"),
        pytest.param("cdi-annotation-prefix", "cdi", "a domain and a slash", id="no prefix of annotations"),
        pytest.param("shared-devices-allocation-policy", "dense", "distributed, packed, spread", id="policy of replicas"),
        pytest.param("time-slicing", "gpu=4", "as JSON", id="replicas in other words"),
        pytest.param("time-slicing", '{"resources": [{"name": "gpu", "replicas": 1}]}', "2 to 10000 replicas", id="one replica"),
        pytest.param("register-format", "xml", "json, csv9, csv7", id="register format"),
        pytest.param("handshake", "maybe", "auto, on, off", id="handshake"),
        pytest.param("kubelet-socket", "kubelet.sock", "must be absolute", id="relative path"),
        pytest.param("kubelet-socket", "", "cannot be empty; leave it out for /var/lib", id="no kubelet"),
        pytest.param("kubelet-socket", "/" + "k" * 107, "at most 107 bytes", id="a socket path too long"),
        pytest.param("node-name", "Gpu_1", "no name of a Kubernetes node", id="bad node name"),
        pytest.param("node-name", "a\nb", "control characters", id="control characters"),
        pytest.param("resource-name", "gpu", "names like nvidia.com/gpu", id="resource without domain"),
        pytest.param("resource-name", "x.kubernetes.io/gpu", "names like nvidia.com/gpu", id="Kubernetes' own domain"),
        pytest.param("resource-name", "a.b/" + "c" * 60, "names like nvidia.com/gpu", id="resource name too long"),
        pytest.param("gpumem-name", "gpumem", "names like nvidia.com/gpumem", id="amount without domain"),
        pytest.param("gpucores-name", "a.b/" + "c" * 64, "at most 63 characters", id="name of an amount too long"),
        pytest.param("kubeconfig", "/a:/b", "names several files", id="several kubeconfigs"),
        pytest.param("clean-exit", "perhaps", "must be true or false", id="neither true nor false"),
        pytest.param("cache-gc-after", "5 minutes", "must be a time such as", id="time in words"),
        pytest.param("cache-gc-after", "1s", "10 to 2592000 s", id="collected too early"),
        pytest.param("allocate-budget", "1m", "0.1 to 10 s", id="a budget that blocks the node"),
        pytest.param("disable-healthchecks", "79,x", "list of XIDs", id="not an XID"),
        pytest.param("disable-healthchecks", "1024", "list of XIDs from 0 to 1023", id="XID out of range"),
        pytest.param("filter-device-indices", ["-1"], "list of whole numbers", id="negative index"),
        pytest.param("metrics-bind-address", "9394", "an address such as :9394", id="a port alone"),
        pytest.param("metrics-bind-address", "example.com:80", "an address such as", id="a host that must be looked up"),
        pytest.param("metrics-bind-address", ":99999", "an address such as", id="port out of range"),
        pytest.param("metrics-bind-address", "::1:80", "an address such as", id="IPv6 without brackets"),
        pytest.param("lib-cuda-log-level", "9", "0, 1, 2, 3, 4", id="log level of the hook"),
        pytest.param("log-level", "chatty", "debug, info, warning, error", id="log level"),
        pytest.param("config-file", "/nowhere/x.yaml", "cannot be read: No such file", id="file absent"),
        pytest.param("config-file", "/", "Is a directory", id="a directory"),
        pytest.param("node-config-file", "/nowhere/x.json", "cannot be read: No such file", id="override named but absent"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_refused(settle: Resolve, flag: str, raw: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settle({flag: raw})
    assert words in str(refused.value)


def two_thousand(value: str) -> str:
    return "{" + ", ".join(f"k{n}: {value}" for n in range(2000)) + "}"


BOMB = (
    f"x: &x {two_thousand('1')}\ny: &y {two_thousand('*x')}\nversion: v1\n"
    f"flags: {two_thousand('*y')}\n"
)


# Each line has the keys of the one before ten times: made of it, they fill the memory of the host.
MERGED = "a0: &a0 {k: 1, l: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param("nvidia:\n  deviceSplitCount: [1", "line 2", id="broken YAML names the line"),
        pytest.param("- a\n", "must be a mapping", id="a list"),
        pytest.param("nvidia: 3", "section nvidia of", id="section of the wrong type"),
        pytest.param("nvidia: {deviceSplitCount: true}", "nvidia.deviceSplitCount is True", id="a switch for a number"),
        pytest.param("nvidia: {deviceSplitCount: 0}", "must be 1 to 65536", id="zero in the file"),
        pytest.param("version: v2\nflags: {}", "version in", id="unknown version"),
        pytest.param("version: v1\nflags: {migStrategy: mixed}", "does not manage MIG", id="MIG in NVIDIA's file"),
        pytest.param("sharing: {timeSlicing: {resources: [{name: x, replicas: 4}]}}", "set deviceSplitCount", id="time slicing"),
        pytest.param("sharing: {mps: {resources: [{name: x, replicas: 4}]}}", "sharing.mps", id="MPS"),
        pytest.param("version: v1\nimex: {channelIDs: [3]}", "channel 0", id="IMEX channels"),
        pytest.param("a: !!timestamp x", "not usable YAML", id="a tag that PyYAML stumbles over"),
        pytest.param("a: " + "[" * 5000, "not usable YAML", id="too deep"),
        pytest.param("a: !!python/object/apply:os.system ['true']", "could not determine a constructor", id="code in YAML is not run"),
        pytest.param("#" + "x" * MAX_BYTES, "more than 1048576 bytes", id="too large"),
        pytest.param(BOMB, "more than 200000 values", id="a few lines that mean millions of keys"),
        pytest.param(MERGED, "more than 200000 values", id="a few lines that merge millions of keys"),
        pytest.param(f"flags: {two_thousand('1')}", "more than 1000 keys", id="too many keys"),
        pytest.param("nvidia: &a {deviceSplitCount: [*a]}", "has a value within itself", id="a loop"),
        pytest.param("a: &a {b: 1, z: {<<: [*a, *a]}}", "has a value within itself", id="merged into itself"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(settle: Resolve, config: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settle(config=config)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("override", "words"),
    [
        pytest.param('{"nodeconfig":\n [}', "line 2, column 3", id="broken JSON names the line"),
        pytest.param("[]", "must be a mapping", id="a list"),
        pytest.param('{"nodeconfig": {}}', "must be a list", id="entries that are no list"),
        pytest.param('{"nodeconfig": [3]}', "entry 0", id="an entry that is none"),
        pytest.param("[" * 100_000, "not usable JSON", id="too deep"),
        pytest.param("1" * 5000, "not usable JSON", id="an endless number"),
        pytest.param(entry(operatingmode="mps"), f"node {NODE}, operatingmode is 'mps', but GPUs are shared by MPS in mode nvidia only", id="MPS on this node"),
        pytest.param(entry(operatingmode="remote"), f"node {NODE}, operatingmode is 'remote'", id="GPUs elsewhere"),
        pytest.param(entry(devicesplitcount=False), "must be a whole number", id="false is no number"),
        pytest.param(entry(filterdevices=3), "filterdevices", id="filter of the wrong type"),
        pytest.param(entry(filterdevices={"index": [[0]]}), "list of whole numbers", id="nested index"),
        pytest.param(entry(devicememoryscaling=float("inf")), "must be a number", id="infinity"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_refused(settle: Resolve, override: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settle(override=override)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        pytest.param("nvidia: {deviceSplitCount: 4,\n deviceSplitCount: 7}", "line 2: deviceSplitCount is there a second time, after line 1", id="a key twice"),
        pytest.param("nvidia: {deviceSplitCount: 4}\nnvidia: {}\n", "line 2: nvidia is there a second time", id="a section twice"),
        pytest.param("Nvidia: {deviceSplitCount: 4}", "meant: nvidia?", id="a section in another case"),
        pytest.param("kind: ConfigMap\ndata: {x: 'nvidia: {}'}", "so nothing is: there is no section nvidia", id="the ConfigMap and not what is in it"),
    ],
)  # fmt: skip
def test_what_is_not_read_of_a_file_is_logged(settle: Resolve, config: str, words: str) -> None:
    assert words in " ".join(note.text for note in settle(config=config).notes if note.warning)


def test_a_key_that_a_merge_brings_is_not_there_twice(settle: Resolve) -> None:
    config = "x: &x {deviceSplitCount: 4}\nnvidia: &y {<<: *x, deviceSplitCount: 7}\nz: {<<: *y}\n"
    resolution = settle(config=config)
    assert resolution.config.sharing.split_count == 7
    assert not [note for note in resolution.notes if note.warning]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        pytest.param('{"nodeconfig": [], "nodeconfig": []}', "of which the last holds: nodeconfig", id="a key twice"),
        pytest.param('{"nodeconfig": [{"name": "n", "Name": "m"}]}', "of which the last holds: Name", id="in another case"),
        pytest.param('{"nodeConfigs": []}', "has no nodeconfig, so nothing is read: nodeConfigs", id="another key"),
    ],
)  # fmt: skip
def test_what_is_not_read_of_an_override_is_logged(
    settle: Resolve, override: str, words: str
) -> None:
    assert words in " ".join(note.text for note in settle(override=override).notes if note.warning)


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a file"):
        device_config(tmp_path / "pipe")


def test_a_file_that_is_not_text_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        device_config(tmp_path / "x")


def test_a_config_map_is_read_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "x").write_text("nvidia: {deviceSplitCount: 3}")
    (tmp_path / "x").symlink_to("..data/x")
    assert device_config(tmp_path / "x").given["device-split-count"].raw == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"node_name": ""}, "set --node-name or NODE_NAME", id="no node name"),
        pytest.param({"sharing": Sharing(split_count=0)}, "sharing.split_count is '0'", id="no vGPU"),
        pytest.param({"sharing": Sharing(mode="mps")}, "MPS", id="mode"),
        pytest.param({"sharing": Sharing(mode="mig"), "mode": "slices"}, "only mode hami", id="MIG without its scheduler"),
        pytest.param({"sharing": Sharing(mode="mig"), "device_list_strategy": ("cdi-cri",)}, "no CDI file has them", id="MIG by CDI"),
        pytest.param({"hook_path": Path("usr")}, "must be absolute", id="relative"),
    ],
)  # fmt: skip
def test_config_holds_itself_to_the_rules(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(**{"node_name": NODE, **fields})
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("register_format", "handshake", "answers"),
    [
        pytest.param("json", "auto", False, id="new schedulers do not ask"),
        pytest.param("csv9", "auto", True, id="old ones do"),
        pytest.param("csv7", "auto", True, id="and older ones"),
        pytest.param("json", "on", True, id="wanted anyway"),
        pytest.param("csv9", "off", False, id="not wanted"),
    ],
)
def test_answering_the_handshake(register_format: str, handshake: str, answers: bool) -> None:
    config = Config(node_name=NODE, register_format=register_format, handshake=handshake)
    assert config.answers_handshake is answers


def test_the_hook_is_where_the_host_has_it() -> None:
    assert Config(node_name=NODE).host_vgpu_dir == Path("/usr/local/vgpu")
    elsewhere = Config(node_name=NODE, host_hook_path=Path("/host/opt"))
    assert elsewhere.host_vgpu_dir == Path("/host/opt/vgpu")


# --- advice --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        pytest.param({"HOOK_PATH": "/usr/local/vgpu"}, "takes the directory above", id="the monitor's hook path"),
        pytest.param({"VGPU_DEVICE_SPLIT_COUNTS": "3"}, "VGPU_DEVICE_SPLIT_COUNT is", id="a misspelt variable"),
        pytest.param({"ENABLE_TOPOLOGY_SCORE": "True"}, "only `true` means yes", id="True is not true"),
        pytest.param({"CDI_FEATURE_FLAGS": "x"}, "changes nothing", id="a setting without effect"),
    ],
)  # fmt: skip
def test_advice(settle: Resolve, environ: dict[str, str], words: str) -> None:
    assert words in note_texts(settle(environ=environ))


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"VGPU_AGENT_SERVICE_HOST": "10.0.0.1"}, id="a Service of that name"),
        pytest.param({"CDI_ANNOTATION_PREFIX": "cdi.k8s.io/"}, id="the default, said aloud"),
        pytest.param({"NVIDIA_MIG_MONITOR_DEVICES": "all"}, id="for the container runtime"),
    ],
)
def test_no_advice(settle: Resolve, environ: dict[str, str]) -> None:
    assert settle(environ=environ).notes == ()


def test_listings_show_every_setting(settle: Resolve) -> None:
    resolution = settle({"filter-device-uuids": ["GPU-a", "GPU-b"]}, override="{}")
    rows = {row["name"]: row for row in json.loads(json.dumps(as_json(resolution)))["settings"]}
    assert set(rows) == set(BY_NAME)
    assert rows["filter-device-uuids"]["value"] == "GPU-a,GPU-b"
    lines = listing(resolution).splitlines()
    assert [line.split()[0] for line in lines] == list(BY_NAME)


# --- nothing that is written can break the start -------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["0", "true", "5m", "all", "envvar", "none", "1e9", "/x", ":0", "GPU-a"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(setting=st.sampled_from(SETTINGS), raw=VALUES)
def test_any_raw_value_is_understood_or_refused(setting: Any, raw: object) -> None:
    try:
        value = setting.kind.parse(raw)
    except ValueError:
        return
    assert isinstance(setting.kind.show(value), str)
    assert isinstance(setting.rule.objection(value) if setting.rule else "", str)


@given(setting=st.sampled_from(SETTINGS), raw=VALUES)
def test_what_is_shown_is_understood_as_the_same(setting: Any, raw: object) -> None:
    try:
        value = setting.kind.parse(raw)
    except ValueError:
        return
    if not (setting.rule and setting.rule.objection(value)):
        assert setting.kind.parse(setting.kind.show(value)) == value


@pytest.mark.parametrize("form", ["yaml", "json"])
@given(data=st.data())
def test_any_file_is_read_or_refused(tmp_path_factory: Any, form: str, data: Any) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    text = st.text(max_size=80) | st.text(alphabet='{}[]:,-"nvidia\n !&*01', max_size=80)
    path.write_text(data.draw(text), encoding="utf-8", errors="replace")
    said = ""
    try:
        if form == "yaml":
            device_config(path)
        else:
            node_override(path, NODE, may_be_absent=False)
    except ConfigError as error:
        said = str(error)
    assert str(path) in (said or str(path))


@given(
    keys=st.dictionaries(
        st.sampled_from([s.node for s in SETTINGS if s.node]) | st.text(max_size=5), VALUES
    )
)
def test_any_entry_is_settled_or_refused(tmp_path_factory: Any, keys: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("files") / "config.json"
    path.write_text(json.dumps(entry(**{k: v for k, v in keys.items() if k.lower() != "name"})))
    try:
        resolution = resolve({}, {"NODE_NAME": NODE}, node_config_file=path)
    except ConfigError:
        return
    assert resolution.config.node_name == NODE
