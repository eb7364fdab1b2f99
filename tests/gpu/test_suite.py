"""The suite for real GPUs, as far as it can be tried without one: on the simulated GPU.

What it says there is of the simulation alone and is written down nowhere.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, built, sim_libraries

from agent.sim.driver import SimDriver
from tests.gpu.checks import Suite
from tests.gpu.page import (
    Result,
    as_json,
    as_markdown,
    control_result,
    memory_results,
    share_result,
)
from tests.gpu.suite import MISSING, MissingError, look, python_named, run
from tests.gpu.tenants import Bed

SUITE = [sys.executable, str(ROOT / "tests" / "gpu" / "suite.py")]
CHECK = "share"
FOUND = {"total_mib": 4096.0, "room_mib": 10.0, "held_mib": 3700, "again_mib": 3700,
         "refusal": "OutOfMemoryError"}  # fmt: skip


def share(wanted: float, got: float) -> Result:
    return share_result(
        CHECK, f"{wanted} %", wanted_percent=wanted, got_percent=got, within_points=2
    )


@pytest.mark.parametrize(
    ("wanted", "got", "passed"),
    [
        pytest.param(25, 25.0, True, id="exact"),
        pytest.param(25, 27.0, True, id="at the edge"),
        pytest.param(25, 27.1, False, id="too much"),
        pytest.param(75, 72.9, False, id="too little"),
        pytest.param(50, 0.0, False, id="starved"),
    ],
)
def test_a_share_is_judged_in_points(wanted: float, got: float, passed: bool) -> None:
    assert share(wanted, got).passed is passed


@pytest.mark.parametrize(
    ("got", "passed"),
    [
        pytest.param((100.0, 100.0), True, id="nobody limits, and that is noticed"),
        pytest.param((100.0, 50.0), False, id="one of the checks would not notice"),
        pytest.param((), False, id="nothing was tried"),
    ],
)
def test_the_control_passes_when_every_check_fails(got: tuple[float, ...], passed: bool) -> None:
    disabled = [share(wanted, percent) for wanted, percent in zip((25, 50), got, strict=False)]
    assert control_result(CHECK, disabled).passed is passed


@pytest.mark.parametrize(
    ("found", "real_mib", "failed"),
    [
        pytest.param({}, 4090.0, [], id="exact"),
        pytest.param({}, None, [], id="not seen from outside"),
        pytest.param({"total_mib": 80000.0, "room_mib": 75914.0}, None,
                     ["total that CUDA shows"], id="the whole GPU is shown"),
        pytest.param({"room_mib": 200.0}, None, ["used when full"], id="stopped too early"),
        pytest.param({"room_mib": -1.0}, None, ["used when full"], id="over the limit"),
        pytest.param({}, 4097.0, ["taken of the GPU, seen from outside"], id="more than it says"),
        pytest.param({"again_mib": 3600}, None, ["fits again when given back"], id="leaked"),
        pytest.param({"refusal": "RuntimeError"}, None, ["refused as"], id="another error"),
    ],
)  # fmt: skip
def test_memory_is_judged(
    found: dict[str, float | str], real_mib: float | None, failed: list[str]
) -> None:
    results = memory_results("memory", {**FOUND, **found}, limit_mib=4096, real_mib=real_mib)
    assert [result.name for result in results if not result.passed] == failed


def test_the_page_says_what_failed_where_and_when() -> None:
    results = [share(25, 25.3), share(50, 90.0), Result(check="c|d", name="told", value="3")]
    facts = {"date": "2026-01-02", "GPU": "H200", "driver": "580.1, CUDA 13.0"}
    text = as_markdown(facts, results)
    for part in (
        "1 of 2 checks passed",
        "- date: 2026-01-02",
        "- GPU: H200",
        "- driver: 580.1, CUDA 13.0",
        "| share | 25 % | 25.3 % | 25 % within 2 points | ok |",
        "| share | 50 % | 90.0 % | 50 % within 2 points | **FAILED** |",
        "| c/d | told | 3 |  |  |",
    ):
        assert part in text
    read = json.loads(as_json(facts, results))
    assert read["facts"] == facts
    assert [result["passed"] for result in read["results"]] == [True, False, None]


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """A simulated GPU whose kernels take 2 ms."""
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    gpu = sim.add_gpu()
    sim.kernel_us(2000)
    environ = {"PATH": "/usr/bin:/bin", **sim.environment()}
    return Bed(sys.executable, built() / "libvgpu.so", tmp_path, environ, gpu.uuid)


def test_it_knows_what_it_runs_on(bed: Bed) -> None:
    facts = look(bed, ["shares"])
    assert facts["GPU"] == "NVIDIA A40"
    assert "CUDA 12.8" in facts["driver"]


@pytest.mark.parametrize("check", ["contexts", "probes"])
def test_checks_that_need_the_driver_alone_run(bed: Bed, check: str) -> None:
    results = run(Suite(bed, seconds=0.1), [check])
    assert results
    assert [result for result in results if result.name == "runs"] == []


def test_rates_are_measured_of_tenants_side_by_side(bed: Bed) -> None:
    suite = Suite(bed, seconds=1.0)
    policy = {"GPU_CORE_UTILIZATION_POLICY": "disable"}
    (alone,) = suite.rates(2_000_000, 1, [policy])
    first, second = suite.rates(2_000_000, 1, [policy, policy])
    assert alone > 0
    assert first + second < 1.5 * alone, "they share one GPU"


def test_a_check_that_breaks_off_is_a_failure_and_says_why(bed: Bed) -> None:
    (result,) = run(Suite(bed), ["training"])  # this Python has no PyTorch, or no real GPU
    assert (result.name, result.passed) == ("runs", False)
    assert "torch_work.py train" in result.value


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        pytest.param(["--hook", "/nowhere.so"], "/nowhere.so is not there", id="no library"),
        pytest.param(["--python", "/no/python"], "there is no /no/python", id="no Python"),
        pytest.param([], "no GPU that CUDA can use: ", id="no GPU"),
    ],
)
def test_what_is_missing_is_one_sentence_and_no_page(
    flags: list[str], sentence: str, tmp_path: Path
) -> None:
    page = tmp_path / "gpu.md"
    environ = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}  # none, on a real one too
    words = ["--hook", str(built() / "libvgpu.so"), *flags, "--page", str(page)]
    done = subprocess.run(
        [*SUITE, *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == MISSING, done.stderr
    assert done.stderr.startswith("build.py gpu: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not page.exists()


def test_without_pytorch_it_says_what_to_install(bed: Bed, tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    without.chmod(0o755)
    lacking = Bed(python_named(str(without)), bed.hook, bed.scratch, bed.environ, bed.uuid)
    with pytest.raises(MissingError, match="pip install torch"):
        look(lacking, ["memory"])
