"""The suite for real GPUs, as far as it can be tried without one: on the simulated GPU.

What it says there is of the simulation alone and is written down nowhere.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from built_hook import ROOT, built

import tests.gpu.suite
from tests import provenance
from tests.gpu.checks import CHECKS, Check, Suite
from tests.gpu.pace import rate
from tests.gpu.page import (
    Result,
    as_json,
    as_markdown,
    control_result,
    memory_results,
    race_results,
    same_results,
    share_result,
    step_results,
    view_results,
)
from tests.gpu.simulated_bed import quick
from tests.gpu.smi import smi
from tests.gpu.suite import MISSING, look, picture, publish, run
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
    results = [share(25, 25.3), share(50, 90.0), Result(check="c|d", name="told", value="3\n4")]
    facts = {"date": "2026-01-02", "GPU": "H200", "driver": "580.1, CUDA 13.0"}
    text = as_markdown(facts, results)
    for part in (
        "1 of 2 checks passed",
        "- date: 2026-01-02",
        "- GPU: H200",
        "- driver: 580.1, CUDA 13.0",
        "| share | 25 % | 25.3 % | 25 % within 2 points | ok |",
        "| share | 50 % | 90.0 % | 50 % within 2 points | **FAILED** |",
        "| c/d | told | 3 4 |  |  |",
    ):
        assert part in text
    read = json.loads(as_json(facts, results))
    assert read["facts"] == facts
    assert [result["passed"] for result in read["results"]] == [True, False, None]


def settled(done_s: float, percents: Sequence[float]) -> list[float]:
    """When pieces of 1 ms were done with these shares, each for `done_s`."""
    times, now = [], 0.0
    for percent in percents:
        end = now + done_s
        while now < end:
            now += 0.1 / percent
            times.append(now)
    return times


@pytest.mark.parametrize(
    ("percents", "passed"),
    [
        pytest.param((30, 70, 20), [True, True], id="at once"),
        pytest.param((30, 30, 20), [False, True], id="one is not noticed"),
        pytest.param((30, 50, 20), [False, True], id="half the way"),
        pytest.param((30, 70, 70), [True, False], id="does not come down"),
    ],
)
def test_a_step_is_judged_by_when_it_arrives(percents: Sequence[float], passed: list[bool]) -> None:
    changed = [(0.0, 30.0), (1.0, 70.0), (2.0, 20.0)]
    results = step_results("step", changed, settled(1.0, percents), whole=1000.0)
    assert [result.passed for result in results] == [*passed, None]


def test_a_step_of_which_nothing_was_done_is_a_failure() -> None:
    results = step_results("step", [(0.0, 30.0), (1.0, 70.0)], [], whole=1000.0)
    assert [result.passed for result in results] == [False, None]


@pytest.mark.parametrize(
    ("done_s", "wanted"),
    [
        pytest.param([0.0, 1.0, 2.0, 3.0, 4.0], 1.0, id="steady"),
        pytest.param([0.0, 9.0, 9.0, 9.0], 3 / 9, id="a pause counts"),
        pytest.param([0.0, 0.4, 0.9, 2.9, 4.9], 0.5, id="what came first does not"),
        pytest.param([0.0], 0.0, id="one"),
        pytest.param([], 0.0, id="none"),
    ],
)
def test_a_rate_is_of_all_the_time(done_s: list[float], wanted: float) -> None:
    assert rate(done_s, 1.0) == pytest.approx(wanted)


def raced(*held: int, room: int = 0, smallest: int = 512, total: int = 4096) -> list[Result]:
    ones = [{"held": one, "refused": 3, "smallest": smallest} for one in held]
    return race_results(
        "cuMemAlloc", ones, [{"total": total, "room": room}], limit=4096, real_mib=None
    )


@pytest.mark.parametrize(
    ("results", "passed"),
    [
        pytest.param(raced(2048, 2048), True, id="exact"),
        pytest.param(raced(2048, 1536), True, id="contexts take the rest"),
        pytest.param(raced(2048, 2560), False, id="one allocation too many"),
        pytest.param(raced(2048, 1536, room=511), True, id="less than the smallest is left"),
        pytest.param(raced(2048, 1536, room=512), False, id="one more would have fitted"),
        pytest.param(raced(2048, 2048, total=8192), False, id="another limit is shown"),
    ],
)
def test_a_race_is_judged_to_the_byte(results: list[Result], passed: bool) -> None:
    assert [result.passed for result in results] == [passed]


MIB = 1 << 20
TOLD = {"cuda": [3072 * MIB, 4096 * MIB], "torch": [3072 * MIB, 4096 * MIB], "held": 512 * MIB,
        "properties": 4096 * MIB}  # fmt: skip


@pytest.mark.parametrize(
    ("told", "inside", "failed"),
    [
        pytest.param({}, (4096, 1024), [], id="all agree"),
        pytest.param({"torch": [3071 * MIB, 4096 * MIB]}, (4096, 1024),
                     ["torch.cuda.mem_get_info"], id="PyTorch has other figures"),
        pytest.param({"properties": 80000 * MIB}, (4096, 1024),
                     ["torch.cuda.get_device_properties"], id="the whole GPU is shown"),
        pytest.param({}, (80000, 1024), ["nvidia-smi inside"], id="nvidia-smi shows the whole GPU"),
        pytest.param({}, (4096, 512), ["nvidia-smi inside"], id="nvidia-smi misses a context"),
        pytest.param({}, None, ["nvidia-smi inside"], id="nvidia-smi fails inside"),
        pytest.param({"held": 2048 * MIB}, (4096, 1024),
                     ["torch.cuda.mem_get_info"], id="what is held is missing"),
    ],
)  # fmt: skip
def test_what_is_said_of_the_memory_is_compared(
    told: dict[str, object], inside: tuple[float, float] | None, failed: list[str]
) -> None:
    results = view_results("views", {**TOLD, **told}, inside, limit_mib=4096, smi_is_there=True)
    assert [result.name for result in results if result.passed is False] == failed


@pytest.mark.parametrize(
    ("again", "hooked", "passed"),
    [
        pytest.param("a", "a", True, id="the same"),
        pytest.param("a", "b", False, id="changed by the hook"),
        pytest.param("b", "c", None, id="never the same"),
    ],
)
def test_results_are_compared_where_they_can_be(
    again: str, hooked: str, passed: bool | None
) -> None:
    assert same_results("JAX", "a", again, hooked, twice=True)[-1].passed is passed


def test_it_knows_what_it_runs_on(bed: Bed) -> None:
    nameless = replace(bed, uuid="")
    suite, facts = look(nameless)
    assert suite.bed == bed, "the GPU that CUDA has as its first is the only one from then on"
    assert facts["GPU"] == f"NVIDIA A40, {bed.uuid}"
    assert "CUDA 12.8" in facts["driver"]
    digest = hashlib.sha256(bed.hook.read_bytes()).hexdigest()
    assert digest.startswith(facts["hook"].removeprefix("SHA-256 ")), "which library was tried"
    assert provenance.described().items() <= facts.items(), "of which commit, when, and where"


def test_the_gpu_is_the_one_that_cuda_is_told(bed: Bed) -> None:
    """CUDA_VISIBLE_DEVICES chooses it, by number or by uuid; nvidia-smi's order means nothing."""
    second = str(bed.environ["SECOND"])
    for visible in ("1", second):
        chosen = replace(bed, uuid="", environ={**bed.environ, "CUDA_VISIBLE_DEVICES": visible})
        assert look(chosen)[0].bed.uuid == second


@pytest.mark.parametrize("check", ["contexts", "pools", "events", "views", "overhead"])
def test_checks_that_need_the_driver_alone_run(bed: Bed, check: str) -> None:
    results = run(Suite(quick(bed)), [check])
    assert results
    assert [result for result in results if result.name == "runs"] == []


def test_how_long_an_event_holds_up_its_stream_is_told(bed: Bed) -> None:
    with Path(bed.environ["VGPU_SIM_DRIVER"]).open("a") as config:
        config.write("event_ns 1500\n")
    told = bed.run(["cuda_work.py", "events"], hooked=False)
    assert told["held_up_us"][len(told["held_up_us"]) // 2] == pytest.approx(1.5, abs=0.01)


def test_a_race_for_memory_ends_at_the_limit_by_every_function(bed: Bed) -> None:
    results = run(Suite(bed), ["race"])
    assert len(results) == 12
    failed = [result.check for result in results if not result.passed]
    assert failed in (
        [],
        ["race of 8 processes, cuGraphAddMemAllocNode"],
    )  # docs/hook.md: not exact


def test_the_steps_of_a_pool_are_told(bed: Bed) -> None:
    values = [result.value for result in run(Suite(bed), ["pools"])]
    assert len(values) == 4
    assert all("32 MiB" in grows for grows in values[::2]), values  # as the simulated driver does
    assert all("0 after a trim" in kept for kept in values[1::2]), values


def test_an_illegal_access_is_the_culprits_alone(bed: Bed) -> None:
    """The simulated driver computes nothing, so it is told what to say."""
    (told, *others) = run(Suite(quick(bed)), ["illegal"])
    assert (told.value, told.passed) == ("CUresult 0", False), "nothing but 700 or 719 will do"
    assert [(other.name, other.passed) for other in others] == [
        ("another container meanwhile, and afterwards", True),
        ("the same container starts CUDA again", True),
    ]


@pytest.mark.parametrize(
    ("check", "needs"), [(name, check.needs) for name, check in CHECKS.items() if check.needs]
)
def test_what_this_python_lacks_is_said_and_not_tried(bed: Bed, check: str, needs: str) -> None:
    (result,) = run(Suite(bed), [check])
    assert (result.name, result.passed) == (needs, None)
    assert "is not there" in result.value


def test_a_check_that_breaks_off_is_a_failure_and_says_why(bed: Bed) -> None:
    """PyTorch is said to be there; this Python has none."""
    (result,) = run(Suite(bed, libraries={"torch": "2"}), ["training"])
    assert (result.name, result.passed) == ("runs", False)
    assert "torch_work.py train" in result.value


def never_ends(_suite: Suite) -> Iterator[Result]:
    yield Result(check="hangs", name="before", value="1", passed=True)
    threading.Event().wait()  # not even a program that could be asked


def good(_suite: Suite) -> list[Result]:
    return [Result(check="good", name="it", value="1", passed=True)]


def bad(_suite: Suite) -> list[Result]:
    raise ZeroDivisionError


def test_a_check_that_hangs_or_raises_costs_no_other(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tests.gpu.suite, "GRACE_S", 0.2)
    checks = {
        "hangs": Check("It hangs.", never_ends, 0.1),
        "raises": Check("It raises.", bad, 60),
        "passes": Check("It passes.", good, 60),
    }
    results = run(Suite(bed), list(checks), checks=checks)
    assert [(result.name, result.passed) for result in results] == [
        ("before", True), ("runs", False), ("runs", False), ("it", True),
    ]  # fmt: skip
    assert "did not end" in results[1].value
    assert "ZeroDivisionError" in results[2].value


def test_what_the_budget_leaves_no_time_for_is_a_failed_row(bed: Bed) -> None:
    results = run(Suite(bed), ["contexts", "pools"], budget_s=0)
    assert [(result.name, result.passed) for result in results] == [("runs", False)] * 2
    assert all("time for all checks was over" in result.value for result in results)


def test_a_program_is_waited_for_no_longer_than_its_check_may_take(
    bed: Bed, tmp_path: Path
) -> None:
    slow = replace(bed, python=program(tmp_path / "slow", "#!/bin/sh\nexec sleep 600\n"))
    check = {"slow": Check("It waits.", lambda suite: [suite.bed.run(["cuda_work.py"])], 0.3)}
    (result,) = run(Suite(slow), ["slow"], checks=check)
    assert "the time for this check is over" in result.value


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
    results = run(Suite(broken), ["contexts", "overhead"])
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
    eventually(lambda: not child.exists() or ") Z " in child.read_text(), within_s=60)


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
    left = ", ".join(name for name in CHECKS if name not in ("contexts", "pools"))
    assert f"- not run: {left}\n" in page.read_text()


def test_where_the_library_is_built_nothing_is_fetched(tmp_path: Path) -> None:
    """A machine with a GPU may reach no network; a copy of the tree and of the library is enough."""
    tree = tmp_path / "tree"
    for part in ("requirements", "tests/gpu", "agent"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("build.py", "tests/provenance.py"):
        shutil.copy(ROOT / file, tree / file)
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


def test_without_matplotlib_it_says_how_to_draw_later(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    publish(page, {}, [share(25, 25)])
    bare = program(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    assert "build.py gpu --plots" in picture(page, ["/no/python", bare])


def test_what_was_not_measured_is_not_drawn_and_said(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "tests/gpu/plots.py"), str(tmp_path / "gpu.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (MISSING, 1), done
    assert "gpu.json is not there; `python3 build.py gpu` writes it" in done.stderr


def test_what_is_drawn_is_named(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    publish(page, {}, [share(25, 25)])
    drawing = program(tmp_path / "python", "#!/bin/sh\necho $2\n")
    assert picture(page, ["/no/python", drawing]) == str(page.with_suffix(".json"))


def test_without_a_gpu_it_passes_if_asked_to_skip(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    words = [*SUITE, "--hook", str(built() / "libvgpu.so"), "--python", sys.executable]
    words += ["--skip-without-gpu", "--page", str(tmp_path / "gpu.md")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "no GPU that CUDA can use: " in done.stderr) == (0, True), done
