"""A setting that changes nothing where it was set is named: none is ignored silently."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent import modes
from agent.cli import main
from agent.domain.gpu import Gpu, GpuInventory
from agent.settings import resolve
from agent.settings.belongs import BESIDE, PLACES
from agent.settings.table import BY_NAME

SIZES = "small=8Gi:25"


def noted(flags: Mapping[str, str], environ: Mapping[str, str] | None = None) -> list[str]:
    found = resolve(flags, {"NODE_NAME": "n", **(environ or {})})
    assert all(note.warning for note in found.notes), "who sets it for this process is warned"
    return [note.text for note in found.notes]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param({"slice-sizes": SIZES}, "--slice-sizes changes nothing in mode hami: it is for mode slices", id="--mode slices forgotten"),
        pytest.param({"mode": "nvidia", "device-split-count": "3"}, "--device-split-count changes nothing in mode nvidia: it is for modes hami, slices and volcano", id="equal parts of what is not divided"),
        pytest.param({"mode": "slices", "gpu-memory-factor": "5"}, "--gpu-memory-factor changes nothing in mode slices: it is for mode volcano", id="a unit that nobody counts in"),
        pytest.param({"mode": "volcano", "device-memory-scaling": "2"}, "--device-memory-scaling changes nothing in mode volcano", id="what Volcano's scheduler does not know"),
        pytest.param({"mode": "slices", "limits-annotation": "any"}, "--limits-annotation changes nothing in mode slices", id="annotations that kubelet does not tell"),
        pytest.param({"mode": "volcano", "register-format": "csv9"}, "--register-format changes nothing in mode volcano", id="a form of HAMi's"),
        pytest.param({"mode": "nvidia", "core-lending": "false"}, "--core-lending changes nothing in mode nvidia", id="no shares, none to lend"),
        pytest.param({"shared-devices-allocation-policy": "packed"}, "changes nothing in mode hami: it is for mode nvidia", id="NVIDIA's in mode hami"),
        pytest.param({"mode": "slices", "slice-sizes": SIZES, "device-split-count": "4"}, "--device-split-count changes nothing beside --slice-sizes", id="parts beside sizes"),
        pytest.param({"known-mig-geometries": '[{"models": ["A100"], "allowedGeometries": [[{"name": "1g.5gb", "memory": 5120, "count": 7}]]}]'}, "changes nothing without --operating-mode mig", id="geometries of what is not divided so"),
        pytest.param({"mode": "nvidia", "default-config": "a"}, "--default-config changes nothing without --config-file-srcdir", id="one of no configurations"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_named(flags: Mapping[str, str], words: str) -> None:
    (note,) = noted(flags)
    assert words in note
    assert note.endswith("leave it out, or change what is in its way")


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"mode": "slices", "slice-sizes": SIZES}, id="sizes in mode slices"),
        pytest.param({"mode": "slices", "device-split-count": "3"}, id="parts in mode slices"),
        pytest.param({"mode": "volcano", "gpu-memory-factor": "5"}, id="a factor in mode volcano"),
        pytest.param({"mode": "nvidia", "device-split-count": "10"}, id="the default, said aloud"),
        pytest.param({"mode": "nvidia", "fail-on-init-error": "true"}, id="what counts everywhere"),
        pytest.param({"device-split-count": "3", "register-format": "csv9"}, id="mode hami's own"),
    ],
)
def test_what_counts_is_not(flags: Mapping[str, str]) -> None:
    assert noted(flags) == []


def test_a_variable_is_named_as_it_is_written() -> None:
    (note,) = noted({}, {"VGPU_SLICE_SIZES": SIZES})
    assert note.startswith("environment VGPU_SLICE_SIZES changes nothing in mode hami")


def test_what_a_file_says_is_noted_without_a_warning(tmp_path: Path) -> None:
    """It may be for nodes in another mode, or for the scheduler."""
    file = tmp_path / "device-config.yaml"
    file.write_text("nvidia: {gpuMemoryFactor: 5, deviceSplitCount: 3}\n")
    found = resolve({"config-file": str(file)}, {"NODE_NAME": "n"})
    assert [(note.text, note.warning) for note in found.notes] == [
        (f"{file}, nvidia.gpuMemoryFactor changes nothing in mode hami: it is for mode volcano", False)
    ]  # fmt: skip


def test_config_and_the_log_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`uninstall` logs its settings as `run` does, and needs no node."""
    given = ["--slice-sizes", SIZES, "--node-name", "n"]
    assert main(["config", "--json", *given], {}) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    tree = ["--root", str(tmp_path), "--dry-run", "--log-format", "logfmt"]
    assert main(["uninstall", *tree, *given], {}) == 0
    logged = capsys.readouterr().err
    assert "setting_noted" in logged
    assert note["text"] in logged


def test_each_setting_has_one_place() -> None:
    placed = [name for place in PLACES for name in place.settings]
    beside = [name for one in BESIDE for name in one.settings]
    assert set(placed) | set(beside) <= set(BY_NAME)
    assert len(placed) == len(set(placed))
    assert len(beside) == len(set(beside))


def test_no_split_count_stands_in_the_way_of_sizes() -> None:
    """As it changes nothing, it is no reason to refuse either."""
    gpus = GpuInventory.of(
        Gpu(
            index=index,
            uuid=f"GPU-{uuid.UUID(int=index)}",
            name="NVIDIA A40",
            memory_mib=46068,
            numa_node=None,
        )
        for index in range(8)
    )
    flags = {"mode": "slices", "slice-sizes": SIZES, "device-split-count": "65536"}
    assert modes.objection(resolve(flags, {"NODE_NAME": "n"}).config, gpus) == ""
