"""The suite for real GPUs, as far as it can be tried without one: on the simulated GPU.

What it says there is of the simulation alone and is written down nowhere.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from built_hook import ROOT, built, sim_libraries

from agent.sim.driver import SimDriver
from tests.gpu.checks import Suite, smi
from tests.gpu.page import (
    Result,
    as_json,
    as_markdown,
    control_result,
    memory_results,
    share_result,
)
from tests.gpu.suite import MISSING, MissingError, look, publish, python_named, run
from tests.gpu.tenants import Bed
from tests.waiting import eventually

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
        pytest.param({}, 0.0, ["taken of the GPU, seen from outside"], id="nothing was taken"),
        pytest.param({}, 3600.0, ["taken of the GPU, seen from outside"], id="held is not there"),
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
    nameless = replace(bed, uuid="")
    found, facts = look(nameless, ["shares"])
    assert found == bed, "the GPU that CUDA has as its first is the only one from then on"
    assert facts["GPU"] == "NVIDIA A40"
    assert "CUDA 12.8" in facts["driver"]


@pytest.mark.parametrize("check", ["contexts", "pools", "probes"])
def test_checks_that_need_the_driver_alone_run(bed: Bed, check: str) -> None:
    results = run(Suite(bed, seconds=0.1), [check])
    assert results
    assert [result for result in results if result.name == "runs"] == []


def test_the_steps_of_a_pool_are_told(bed: Bed) -> None:
    values = [result.value for result in run(Suite(bed), ["pools"])]
    assert len(values) == 4
    assert all("32 MiB" in grows for grows in values[::2]), values  # as the simulated driver does
    assert all("0 after a trim" in kept for kept in values[1::2]), values


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


def program(path: Path, text: str) -> str:
    """An executable script; give its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


FLOOD = "import sys; sys.stderr.write('x' * 3_000_000); sys.stderr.flush(); "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("#!/bin/sh\nexec sleep 600\n", "did not answer within 0.3 s", id="hangs"),
        pytest.param("#!/bin/sh\nsleep 600 &\nwait\n", "did not answer", id="its child hangs"),
        pytest.param("#!/bin/sh\nwhile :; do echo no object; done\n", "did not answer",
                     id="talks without end"),
        pytest.param("#!/bin/sh\necho no driver >&2; exit 7\n", "ended with 7: no driver", id="dies"),
        pytest.param("#!/bin/sh\nkill -9 $$\n", "ended with -9", id="is killed"),
        pytest.param("#!/bin/sh\necho '{broken'\n", "JSONDecodeError", id="talks nonsense"),
        pytest.param("#!/bin/sh\necho '{\"error\": \"no kernel\"}'\n", "no kernel", id="complains"),
    ],
)  # fmt: skip
def test_whatever_a_program_does_is_a_failed_row(
    bed: Bed, tmp_path: Path, text: str, said: str
) -> None:
    broken = replace(bed, python=program(tmp_path / "fake", text), answer_s=0.3)
    results = run(Suite(broken), ["contexts", "launches"])
    assert [(result.name, result.passed) for result in results] == [("runs", False)] * 2
    assert all(said in result.value for result in results), results


def test_a_program_that_cannot_be_started_is_a_failed_row(bed: Bed) -> None:
    (result,) = run(Suite(replace(bed, python="/no/python")), ["contexts"])
    assert (result.passed, "does not start: [Errno 2]" in result.value) == (False, True)


def test_a_long_complaint_stops_nobody(bed: Bed, tmp_path: Path) -> None:
    say = """print('{"held": 1}', flush=True); sys.stdin.readline(); """
    last = """print('warning: no object'); print('{"held": 2}')"""
    talker = program(tmp_path / "talks", f"#!{sys.executable}\n{FLOOD}{say}{FLOOD}{last}\n")
    with replace(bed, python=talker).start(["cuda_work.py"]) as tenant:
        assert tenant.hear() == {"held": 1}
        assert tenant.finish() == {"held": 2}


def test_what_a_program_started_ends_with_it(bed: Bed, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    text = f"#!/bin/sh\nsleep 600 &\necho $! >{pid_file}\necho '{{}}'\nwait\n"
    with replace(bed, python=program(tmp_path / "parent", text)).start(["x"]) as tenant:
        assert tenant.hear() == {}
        child = Path("/proc", pid_file.read_text().strip(), "stat")
        assert child.exists()
    eventually(lambda: not child.exists() or ") Z " in child.read_text(), within_s=10)


OTHER = "GPU-00000000-0000-0000-0000-000000000000, 11, 7"


@pytest.mark.parametrize(
    ("rows", "end", "told"),
    [
        pytest.param(["{own}, 4096, 300", OTHER], "", ["4096", "300"], id="first"),
        pytest.param([OTHER, "{own}, 4096, 300"], "", ["4096", "300"], id="not CUDA's order"),
        pytest.param([OTHER], "", None, id="not listed"),
        pytest.param([], "", None, id="lists nothing"),
        pytest.param(["{own}, 4096, 300"], "exit 9", None, id="fails"),
        pytest.param([], "exec sleep 600", None, id="hangs"),
    ],
)
def test_nvidia_smis_rows_are_known_by_uuid(
    bed: Bed, tmp_path: Path, rows: list[str], end: str, told: list[str] | None
) -> None:
    lines = "".join(f"echo '{row.format(own=bed.uuid)}'\n" for row in rows)
    program(tmp_path / "bin" / "nvidia-smi", f"#!/bin/sh\n{lines}{end}\n")
    environ = {**bed.environ, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    there = replace(bed, environ=environ, answer_s=0.5 if "sleep" in end else 60.0)
    assert smi(there, "memory.total,memory.used", hooked=False) == told


def test_results_are_written_after_every_check(bed: Bed, tmp_path: Path) -> None:
    """So that what breaks the suite off costs no more than the check it was at."""
    page = tmp_path / "results" / "gpu.md"
    written: list[tuple[str, int]] = []

    def record(done: list[str], results: list[Result]) -> None:
        publish(page, {"done": " ".join(done)}, results)
        written.append((page.read_text(), len(json.loads(page.with_suffix(".json").read_text()))))

    run(Suite(bed), ["contexts", "pools"], record)
    assert ["- done: contexts\n" in written[0][0], "| pools |" in written[0][0]] == [True, False]
    assert ["- done: contexts pools\n" in written[1][0], "| pools |" in written[1][0]] == [True] * 2


def test_the_command_writes_a_page_and_what_it_left_out(bed: Bed, tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    words = [*SUITE, "--hook", str(bed.hook), "--python", sys.executable, "--page", str(page)]
    done = subprocess.run(
        [*words, "--only", "contexts", "--only", "pools"],
        env=dict(bed.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == page.read_text().strip()
    assert "- not run: memory, smi, training, launches, probes, shares\n" in page.read_text()


def test_where_the_library_is_built_nothing_is_fetched(tmp_path: Path) -> None:
    """A machine with a GPU may reach no network; a copy of the tree and of the library is enough."""
    tree = tmp_path / "tree"
    for part in ("requirements", "tests/gpu"):
        shutil.copytree(ROOT / part, tree / part)
    shutil.copy(ROOT / "build.py", tree)
    library = tree / built().relative_to(ROOT) / "libvgpu.so"
    library.parent.mkdir(parents=True)
    shutil.copy(built() / "libvgpu.so", library)
    environ = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "PIP_NO_INDEX": "1"}
    words = [sys.executable, "-S", "-I", str(tree / "build.py"), "gpu", "--only", "contexts"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "no GPU that CUDA can use" in done.stderr) == (MISSING, True), done
    assert sorted(path.name for path in (tree / ".build").iterdir()) == ["hook"]


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
