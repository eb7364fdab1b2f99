"""The checks that only a real GPU can answer: `python3 build.py gpu`, or this file with any Python.

Needs an NVIDIA driver, PyTorch for the Python that is named by --python, and the built libvgpu.so;
nothing else, so it runs on a bare machine from a copy of this tree. Exit code 0: all passed; 1: not
all; 3: something is missing, and one sentence says what.
"""

import argparse
import datetime as dt
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.checks import Suite, smi  # noqa: E402 - the path above leads to them
from tests.gpu.page import Result, as_json, as_markdown  # noqa: E402
from tests.gpu.tenants import Bed, TenantError  # noqa: E402

MISSING = 3
ARCH = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
HOOK = ROOT / ".build" / "hook" / ARCH / "libvgpu.so"
PAGE = ROOT / "docs" / "results" / "gpu.md"
NEEDS_TORCH = ("memory", "training")


class MissingError(Exception):
    """Something that the checks need is not here; the message is a sentence that says what to do."""


def python_named(name: str | None) -> str:
    """The Python that tenants run with. Raises MissingError."""
    found = shutil.which(name or "python3")
    if found is None:
        raise MissingError(f"there is no {name or 'python3'}; name a Python with --python")
    return found


def look(bed: Bed, wanted: Sequence[str]) -> tuple[Bed, dict[str, str]]:
    """CUDA's first GPU alone, and what there is, for the head of the page. Raises MissingError."""
    if not bed.hook.is_file():
        raise MissingError(f"{bed.hook} is not there; run `python3 build.py hook` first")
    try:
        gpu = bed.run(["cuda_work.py", "probe"], hooked=False)
    except TenantError as error:
        raise MissingError(f"no GPU that CUDA can use: {error}") from None
    bed = replace(bed, uuid=bed.uuid or gpu["uuid"])
    driver = smi(bed, "driver_version", hooked=False)
    facts = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "GPU": gpu["name"],
        "driver": f"{driver[0] if driver else 'version unknown'}, CUDA {gpu['cuda']}",
        "kernel": platform.release(),
    }
    if any(name in NEEDS_TORCH for name in wanted):
        try:
            torch = bed.run(["torch_work.py", "probe"], hooked=False)
        except TenantError as error:
            raise MissingError(
                f"PyTorch does not work for {bed.python}: {error}; run `pip install torch` there, "
                "or name a Python that has it with --python"
            ) from None
        facts["PyTorch"] = f"{torch['torch']}, CUDA {torch['cuda']}"
    return bed, facts


def run(
    suite: Suite,
    wanted: Sequence[str],
    record: Callable[[list[str], list[Result]], None] = lambda _done, _results: None,
) -> list[Result]:
    """Run the checks; one that breaks off is a failed check, and the others go on.

    `record` is given the names of those that are done, and all results so far, after every check.
    """
    results: list[Result] = []
    done: list[str] = []
    for name, check in suite.checks().items():
        if name not in wanted:
            continue
        tell(f"{name}: {check.__doc__}")
        try:
            found = check()
        except Exception as error:  # noqa: BLE001 - hours on a rented GPU must not be lost to any
            kind = "" if isinstance(error, TenantError) else f"{type(error).__name__}: "
            found = [Result(check=name, name="runs", value=f"{kind}{error}", passed=False)]
        for result in found:
            mark = {None: "    ", True: "ok  ", False: "FAIL"}[result.passed]
            tell(f"  {mark} {result.name}: {result.value} ({result.wanted})")
        results += found
        done.append(name)
        record(done, results)
    return results


def tell(line: str) -> None:
    """Tell the person in front of the terminal how far it is."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - it talks to a person


def publish(page: Path, facts: Mapping[str, str], results: Sequence[Result]) -> None:
    """Write the page, and the same as JSON beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(as_markdown(facts, results))
    page.with_suffix(".json").write_text(as_json(facts, results))


def main(argv: Sequence[str]) -> int:
    """Run what is asked for."""
    names = list(Suite(Bed("", HOOK, ROOT)).checks())
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
    parser.add_argument("--seconds", type=float, default=6.0, help="how long shares are watched")
    parser.add_argument("--only", choices=names, action="append", help="this check (repeatable)")
    chosen = parser.parse_args(argv)
    wanted = chosen.only or names
    scratch = Path(tempfile.mkdtemp(prefix="vgpu-gpu-"))
    try:
        bed, facts = look(Bed(python_named(chosen.python), chosen.hook.resolve(), scratch), wanted)

        def record(done: list[str], results: list[Result]) -> None:
            left = ", ".join(name for name in names if name not in done)
            publish(chosen.page, {**facts, **({"not run": left} if left else {})}, results)

        results = run(Suite(bed, chosen.seconds), wanted, record)
    except MissingError as error:
        print(f"build.py gpu: {error}", file=sys.stderr)  # noqa: T201 - it talks to a person
        return MISSING
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(chosen.page.read_text())  # noqa: T201 - it talks to a person
    return 1 if any(result.passed is False for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
