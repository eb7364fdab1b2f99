"""docs/modes/nvidia.md: every setting of NVIDIA's plugin has a row, and the rows are true."""

import re
from pathlib import Path

import pytest

from agent.settings.files import FEATURE_DISCOVERY
from agent.settings.manual import flags_of
from agent.settings.resolve import resolve
from agent.settings.setting import Setting
from agent.settings.table import SETTINGS

PAGE = Path(__file__).parents[2] / "docs/modes/nvidia.md"
# What NVIDIA k8s-device-plugin 0.19 and 0.20 take: flags, variables, keys of the file.
UPSTREAM = """
--mig-strategy MIG_STRATEGY flags.migStrategy
--fail-on-init-error FAIL_ON_INIT_ERROR flags.failOnInitError
--mps-root MPS_ROOT flags.mpsRoot
--driver-root --nvidia-driver-root NVIDIA_DRIVER_ROOT flags.nvidiaDriverRoot
--dev-root --nvidia-dev-root NVIDIA_DEV_ROOT flags.nvidiaDevRoot
--pass-device-specs PASS_DEVICE_SPECS flags.plugin.passDeviceSpecs
--device-list-strategy DEVICE_LIST_STRATEGY flags.plugin.deviceListStrategy
--device-id-strategy DEVICE_ID_STRATEGY flags.plugin.deviceIDStrategy
--gdrcopy-enabled GDRCOPY_ENABLED flags.gdrcopyEnabled
--gds-enabled GDS_ENABLED flags.gdsEnabled
--mofed-enabled MOFED_ENABLED flags.mofedEnabled
--kubelet-socket KUBELET_SOCKET
--config-file CONFIG_FILE
--cdi-annotation-prefix CDI_ANNOTATION_PREFIX flags.plugin.cdiAnnotationPrefix
--nvidia-cdi-hook-path --nvidia-ctk-path NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH flags.plugin.nvidiaCTKPath
--driver-root-ctr-path --container-driver-root DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT flags.plugin.containerDriverRoot
--device-discovery-strategy DEVICE_DISCOVERY_STRATEGY flags.deviceDiscoveryStrategy
--imex-channel-ids IMEX_CHANNEL_IDS imex.channelIDs
--imex-required IMEX_REQUIRED imex.required
--shared-devices-allocation-policy SHARED_DEVICES_ALLOCATION_POLICY flags.plugin.sharedDevicesAllocationPolicy
--cdi-feature-flags CDI_FEATURE_FLAGS
--cdi-disable-hooks CDI_DISABLE_HOOKS
--config-file-srcdir CONFIG_FILE_SRCDIR
--node-label NODE_LABEL
--default-config DEFAULT_CONFIG
--fallback-strategies FALLBACK_STRATEGIES
DP_DISABLE_HEALTHCHECKS
DP_ENABLE_HEALTHCHECKS
version
resources
sharing.timeSlicing
sharing.mps
flags.useNodeFeatureAPI
flags.gfd.oneshot
flags.gfd.noTimestamp
flags.gfd.sleepInterval
flags.gfd.outputFile
flags.gfd.machineTypeFile
"""
DEFAULTS = {  # as upstream's help says
    "mig-strategy": "none",
    "fail-on-init-error": "true",
    "nvidia-driver-root": "/",
    "pass-device-specs": "false",
    "device-list-strategy": "envvar",
    "device-id-strategy": "uuid",
    "gdrcopy-enabled": "false",
    "gds-enabled": "false",
    "mofed-enabled": "false",
    "cdi-annotation-prefix": "cdi.k8s.io/",
    "driver-root-ctr-path": "/driver-root",
    "imex-required": "false",
    "shared-devices-allocation-policy": "distributed",
}
ROW = re.compile(r"\| (.*) \| (.*) \| (.*) \| ((?:same|differs).*) \|")
NAME = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[frozenset[str], str]]:
    found = []
    for line in PAGE.read_text().splitlines():
        if match := ROW.fullmatch(line.replace("| | ", "|  | ").replace("| | ", "|  | ")):
            names = frozenset(name for cell in match.groups()[:3] for name in NAME.findall(cell))
            found.append((names, match[4]))
    return found


def setting_of(names: frozenset[str]) -> Setting | None:
    """The setting of ours that all these names mean."""
    found = [
        setting
        for setting in SETTINGS
        if names <= {*flags_of(setting), *setting.environment, setting.nvidia}
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_every_setting_of_nvidias_plugin_has_its_row() -> None:
    wanted = [frozenset(line.split()) for line in UPSTREAM.split("\n") if line]
    assert sorted(map(sorted, wanted)) == sorted(sorted(names) for names, _ in rows())


@pytest.mark.parametrize(
    ("names", "verdict"), [pytest.param(*row, id=" ".join(sorted(row[0]))) for row in rows()]
)
def test_a_row_is_true(names: frozenset[str], verdict: str) -> None:
    setting = setting_of(names)
    if setting is None:
        assert names == {"version"} or names <= FEATURE_DISCOVERY
        return
    says_nothing = "changes nothing" in verdict
    assert bool(setting.unused) is (says_nothing or setting.name == "device-discovery-strategy")
    assert verdict.startswith("same") or len(verdict) > len("differs: ")


def test_defaults_are_nvidias() -> None:
    effective = resolve({"mode": "nvidia", "node-name": "n"}, {}).effective
    shown = {one.setting.name: one.setting.kind.show(one.value) for one in effective}
    assert {name: shown[name] for name in DEFAULTS} == DEFAULTS


def test_every_key_of_nvidias_file_that_we_read_is_nvidias() -> None:
    ours = {setting.nvidia for setting in SETTINGS if setting.nvidia}
    assert ours <= set(UPSTREAM.split())
