"""The checks that only a real GPU can answer: `python3 build.py gpu`, or this file with any Python.

Needs an NVIDIA driver and the built libvgpu.so; nothing else, so it runs on a bare machine from a
copy of this tree. What is about PyTorch, JAX or CuPy is tried if the Python that is named by --python
has it. The GPU is the first that CUDA lists: CUDA_VISIBLE_DEVICES chooses another. Results are
written after each check, and all of them together take no longer than --budget. Exit code 0: all
passed; 1: not all; 3: something is missing, and one sentence says what.
"""

import argparse
import contextlib
import hashlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import provenance  # noqa: E402 - the path above leads to it
from tests.gpu.checks import CHECKS, Check, Suite  # noqa: E402 - the path above leads to them
from tests.gpu.page import Result, as_json, as_markdown  # noqa: E402
from tests.gpu.smi import smi  # noqa: E402
from tests.gpu.tenants import Bed, TenantError  # noqa: E402

MISSING = 3
ARCH = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
HOOK = ROOT / ".build" / "hook" / ARCH / "libvgpu.so"
PAGE = ROOT / "docs" / "results" / "gpu.md"
BUDGET_S = 400.0  # with what build.py does before and after, less than eight minutes
GRACE_S = 15.0  # after which a check that is over, but does not end, is left as it is


class MissingError(Exception):
    """Something that the checks need is not here; the message is a sentence that says what to do."""


def python_named(name: str | None) -> str:
    """The Python that tenants run with. Raises MissingError."""
    found = shutil.which(name or "python3")
    if found is None:
        raise MissingError(f"there is no {name or 'python3'}; name a Python with --python")
    return found


def look(bed: Bed) -> tuple[Suite, dict[str, str]]:
    """CUDA's first GPU alone, and what there is, for the head of the page. Raises MissingError."""
    if not bed.hook.is_file():
        raise MissingError(f"{bed.hook} is not there; run `python3 build.py hook` first")
    try:
        gpu = bed.run(["cuda_work.py", "probe"], hooked=False)
    except TenantError as error:
        raise MissingError(f"no GPU that CUDA can use: {error}") from None
    bed = replace(bed, uuid=bed.uuid or gpu["uuid"])
    driver = smi(bed, "driver_version", hooked=False)
    libraries = bed.run(["array_work.py", "probe"], hooked=False)["found"]
    facts = {
        **provenance.described(),
        "hook": f"SHA-256 {hashlib.sha256(bed.hook.read_bytes()).hexdigest()[:16]}",
        "GPU": f"{gpu['name']}, {bed.uuid}",
        "driver": f"{driver[0] if driver else 'version unknown'}, CUDA {gpu['cuda']}",
        "libraries": ", ".join(f"{name} {found}" for name, found in libraries.items()) or "none",
    }
    return Suite(bed, libraries=libraries), facts


@contextlib.contextmanager
def broken_off(after_s: float) -> Iterator[None]:
    """Raise TenantError in here after so long, whatever it is that does not end."""

    def over(_signal: int, _frame: object) -> None:
        raise TenantError(f"it did not end within {after_s:.0f} s")

    handler = signal.signal(signal.SIGALRM, over)
    before = signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def run(
    suite: Suite,
    wanted: Sequence[str],
    record: Callable[[list[str], list[Result]], None] = lambda _done, _results: None,
    *,
    budget_s: float = BUDGET_S,
    checks: Mapping[str, Check] = CHECKS,
) -> list[Result]:
    """Run the checks; one that breaks off or hangs is a failed check, and the others go on.

    `record` is given the names of those that are done, and all results so far, after every check.
    """
    results: list[Result] = []
    done: list[str] = []
    until_s = time.monotonic() + budget_s
    for name, check in checks.items():
        if name not in wanted:
            continue
        tell(f"{name}: {check.about}")
        for result in one_check(suite, name, check, until_s - time.monotonic()):
            mark = {None: "    ", True: "ok  ", False: "FAIL"}[result.passed]
            tell(f"  {mark} {result.name}: {result.value} ({result.wanted})")
            results.append(result)
        done.append(name)
        record(done, results)
    return results


def one_check(suite: Suite, name: str, check: Check, left_s: float) -> Iterator[Result]:
    """What one check finds, until it is through or breaks off."""
    if check.needs and check.needs not in suite.libraries:
        yield Result(check=name, name=check.needs, value="is not there, so this was not tried")
        return
    limit_s = min(check.limit_s, left_s)
    if limit_s <= 0:
        yield Result(check=name, name="runs", value="the time for all checks was over before its turn",
                     wanted="a larger --budget, or less with --only", passed=False)  # fmt: skip
        return
    found: Iterator[Result] | None = None
    until_s = time.monotonic() + limit_s + GRACE_S
    try:
        while True:
            with broken_off(max(0.1, until_s - time.monotonic())):
                if found is None:
                    found = iter(check.find(suite.until(until_s - GRACE_S)))
                result = next(found, None)
            if result is None:
                return
            yield result
    except Exception as error:  # noqa: BLE001 - hours on a rented GPU must not be lost to any
        kind = "" if isinstance(error, TenantError) else f"{type(error).__name__}: "
        yield Result(check=name, name="runs", value=f"{kind}{error}", passed=False)


def tell(line: str) -> None:
    """Tell the person in front of the terminal how far it is."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - it talks to a person


def publish(page: Path, facts: Mapping[str, str], results: Sequence[Result]) -> None:
    """Write the page, and the same as JSON beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(as_markdown(facts, results))
    page.with_suffix(".json").write_text(as_json(facts, results))


def picture(page: Path, pythons: Sequence[str]) -> str:
    """Draw what can be drawn of it, with the first Python that has Matplotlib; what came of it."""
    script = str(Path(__file__).with_name("plots.py"))
    for python in pythons:
        try:
            done = subprocess.run(
                [python, script, str(page.with_suffix(".json"))],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return done.stdout.strip()
    return "none, because no Python here has Matplotlib: `python3 build.py gpu --plots` draws them"


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        prog="build.py gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", help="the Python that has PyTorch (default: python3)")
    parser.add_argument(
        "--hook", type=Path, default=HOOK, help="the library (default: the built one)"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where the results go")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long shares are watched")
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="for all checks together"
    )
    parser.add_argument("--only", choices=CHECKS, action="append", help="this check (repeatable)")
    parser.add_argument(
        "--skip-without-gpu", action="store_true",
        help="where something is missing, say so and end with exit code 0",
    )  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run what is asked for."""
    chosen = parsed(argv)
    wanted = chosen.only or list(CHECKS)
    scratch = Path(tempfile.mkdtemp(prefix="vgpu-gpu-"))
    try:
        suite, facts = look(Bed(python_named(chosen.python), chosen.hook.resolve(), scratch))

        def record(done: list[str], results: list[Result]) -> None:
            left = ", ".join(name for name in CHECKS if name not in done)
            publish(chosen.page, {**facts, **({"not run": left} if left else {})}, results)

        results = run(
            replace(suite, seconds=chosen.seconds), wanted, record, budget_s=chosen.budget
        )
        facts["pictures"] = picture(chosen.page, [sys.executable, suite.bed.python])
        record(wanted, results)
    except MissingError as error:
        print(f"build.py gpu: {error}", file=sys.stderr)  # noqa: T201 - it talks to a person
        return 0 if chosen.skip_without_gpu else MISSING
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(chosen.page.read_text())  # noqa: T201 - it talks to a person
    return 1 if any(result.passed is False for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
