"""The settings of HAMi's device plugin, row by row: every name it takes means the same here."""

import json
from pathlib import Path

import pytest

from agent.cli import main

# name of the setting here, value, what is then in force; flags and environment names of HAMi 2.10
FLAGS = [
    pytest.param("mig-strategy", "none", "none", ["--mig-strategy"], ["MIG_STRATEGY"], id="--mig-strategy"),
    pytest.param("fail-on-init-error", "true", "true", ["--fail-on-init-error"], ["FAIL_ON_INIT_ERROR"], id="--fail-on-init-error"),
    pytest.param("nvidia-driver-root", "/run/d", "/run/d", ["--nvidia-driver-root"], ["NVIDIA_DRIVER_ROOT"], id="--nvidia-driver-root"),
    pytest.param("dev-root", "/run/d", "/run/d", ["--dev-root", "--nvidia-dev-root"], ["NVIDIA_DEV_ROOT"], id="--dev-root"),
    pytest.param("pass-device-specs", "true", "true", ["--pass-device-specs"], ["PASS_DEVICE_SPECS"], id="--pass-device-specs"),
    pytest.param("device-list-strategy", "volume-mounts", "volume-mounts", ["--device-list-strategy"], ["DEVICE_LIST_STRATEGY"], id="--device-list-strategy"),
    pytest.param("device-id-strategy", "index", "index", ["--device-id-strategy"], ["DEVICE_ID_STRATEGY"], id="--device-id-strategy"),
    pytest.param("gdrcopy-enabled", "true", "true", ["--gdrcopy-enabled"], ["GDRCOPY_ENABLED"], id="--gdrcopy-enabled"),
    pytest.param("gds-enabled", "true", "true", ["--gds-enabled"], ["GDS_ENABLED"], id="--gds-enabled"),
    pytest.param("mofed-enabled", "true", "true", ["--mofed-enabled"], ["MOFED_ENABLED"], id="--mofed-enabled"),
    pytest.param("kubelet-socket", "/k/k.sock", "/k/k.sock", ["--kubelet-socket"], ["KUBELET_SOCKET"], id="--kubelet-socket"),
    pytest.param("cdi-annotation-prefix", "cdi.k8s.io/", "cdi.k8s.io/", ["--cdi-annotation-prefix"], ["CDI_ANNOTATION_PREFIX"], id="--cdi-annotation-prefix"),
    pytest.param("nvidia-cdi-hook-path", "/opt/ctk", "/opt/ctk", ["--nvidia-cdi-hook-path", "--nvidia-ctk-path"], ["NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"], id="--nvidia-cdi-hook-path"),
    pytest.param("driver-root-ctr-path", "/d", "/d", ["--driver-root-ctr-path", "--container-driver-root"], ["DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"], id="--driver-root-ctr-path"),
    pytest.param("device-discovery-strategy", "nvml", "nvml", ["--device-discovery-strategy"], ["DEVICE_DISCOVERY_STRATEGY"], id="--device-discovery-strategy"),
    pytest.param("imex-channel-ids", "", "", ["--imex-channel-ids"], ["IMEX_CHANNEL_IDS"], id="--imex-channel-ids"),
    pytest.param("imex-required", "false", "false", ["--imex-required"], ["IMEX_REQUIRED"], id="--imex-required"),
    pytest.param("log-level", "4", "debug", ["-v"], [], id="-v"),
    pytest.param("node-name", "n2", "n2", ["--node-name"], ["NodeName"], id="--node-name"),
    pytest.param("device-split-count", "3", "3", ["--device-split-count"], ["DEVICE_SPLIT_COUNT"], id="--device-split-count"),
    pytest.param("device-memory-scaling", "1.8", "1.8", ["--device-memory-scaling"], [], id="--device-memory-scaling"),
    pytest.param("device-cores-scaling", "1.5", "1.5", ["--device-cores-scaling"], [], id="--device-cores-scaling"),
    pytest.param("disable-core-limit", "true", "true", ["--disable-core-limit"], [], id="--disable-core-limit"),
    pytest.param("resource-name", "example.com/gpu", "example.com/gpu", ["--resource-name"], [], id="--resource-name"),
    pytest.param("node-name", "n2", "n2", [], ["NODE_NAME"], id="NODE_NAME"),
    pytest.param("hook-path", "/opt", "/opt", [], ["HOOK_PATH"], id="HOOK_PATH"),
    pytest.param("enable-topology-score", "true", "true", [], ["ENABLE_TOPOLOGY_SCORE"], id="ENABLE_TOPOLOGY_SCORE"),
    pytest.param("disable-healthchecks", "79", "79", [], ["DP_DISABLE_HEALTHCHECKS"], id="DP_DISABLE_HEALTHCHECKS"),
    pytest.param("enable-healthchecks", "31", "31", [], ["DP_ENABLE_HEALTHCHECKS"], id="DP_ENABLE_HEALTHCHECKS"),
    pytest.param("cache-gc-after", "10m", "600s", [], ["HAMI_RESYNC_INTERVAL"], id="HAMI_RESYNC_INTERVAL"),
    pytest.param("kubeconfig", "/root/kube", "/root/kube", [], ["KUBECONFIG"], id="KUBECONFIG"),
]  # fmt: skip

SCHEDULERS_KEYS = [
    "resourcePriorityName", "overwriteEnv", "defaultMemory", "defaultCores", "defaultGPUNum",
    "gpuCorePolicy", "runtimeClassName",
]  # fmt: skip


def in_force(
    capsys: pytest.CaptureFixture[str], argv: list[str], environ: dict[str, str]
) -> tuple[dict[str, str], str]:
    """Every setting as `vgpu-agent config` shows it, and its notes."""
    capsys.readouterr()
    assert main(["config", "--json", *argv], environ) == 0
    said = json.loads(capsys.readouterr().out)
    return {one["name"]: one["value"] for one in said["settings"]}, json.dumps(said["notes"])


@pytest.mark.parametrize(("name", "value", "shown", "flags", "variables"), FLAGS)
def test_every_name_of_a_setting_means_the_same(
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    shown: str,
    flags: list[str],
    variables: list[str],
) -> None:
    for flag in flags:
        settings, _ = in_force(capsys, [f"{flag}={value}"], {"NODE_NAME": "n1"})
        assert settings[name] == shown, flag
    for variable in variables:
        settings, _ = in_force(capsys, [], {variable: value})
        assert settings[name] == shown, variable


@pytest.mark.parametrize("key", SCHEDULERS_KEYS)
def test_what_the_scheduler_reads_of_the_same_file_changes_nothing_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str
) -> None:
    path = tmp_path / "device-config.yaml"
    environ = {"NODE_NAME": "n1", "CONFIG_FILE": str(path)}
    path.write_text("nvidia: {deviceSplitCount: 7}\n")
    without, _ = in_force(capsys, [], environ)
    path.write_text(f"nvidia: {{deviceSplitCount: 7, {key}: 1}}\n")
    settings, notes = in_force(capsys, [], environ)
    assert settings == without
    assert f"read by the scheduler: {key}" in notes


def test_the_file_can_be_named_as_hami_names_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_text("nvidia: {deviceSplitCount: 7}\n")
    for argv, environ in (([f"--config-file={path}"], {}), ([], {"CONFIG_FILE": str(path)})):
        settings, _ = in_force(capsys, argv, {"NODE_NAME": "n1", **environ})
        assert settings["device-split-count"] == "7"
