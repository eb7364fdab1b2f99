"""Run the matrix of faults and write what came of it: docs/results/faults.md and faults.json.

run.py [--runs N] [--only WORDS] [--page FILE]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.breaking import names
from tests.faults.matrix import ROWS, Row

PAGE = ROOT / "docs" / "results" / "faults.md"
NOT_HERE = "not cluster and not gpu and not bundle"


@dataclass
class Tally:
    """How often the cases of a row passed, failed, and could not be tried here."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: set[str] = field(default_factory=set)


def tests_of(rows: Sequence[Row]) -> list[str]:
    return sorted({test for row in rows for test in row.tests})


def run_once(tests: Sequence[str]) -> dict[str, Counter[str]]:
    """By test: how many of its cases passed, failed and were skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        words = ["-m", "pytest", "-q", "-m", NOT_HERE, "-p", "no:cacheprovider"]
        words += ["-n", "2", "--dist", "loadfile", f"--junitxml={report}", *tests]
        environ = os.environ | {"VGPU_TEST_FAULTS": "all"}
        subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, check=False)
        return read(ET.parse(report).getroot())  # noqa: S314 - written by pytest just now


def read(report: ET.Element) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for case in report.iter("testcase"):
        path = case.get("classname", "").replace(".", "/") + ".py"
        function = case.get("name", "").partition("[")[0]
        outcome = "passed"
        for child in case:
            outcome = {"failure": "failed", "error": "failed"}.get(child.tag, outcome)
            outcome = "skipped" if child.tag == "skipped" else outcome
        found.setdefault(f"{path}::{function}", Counter())[outcome] += 1
    return found


def tally(rows: Sequence[Row], runs: Sequence[dict[str, Counter[str]]]) -> list[Tally]:
    """Per row; a test that was not reported at all counts as failed."""
    made = []
    for row in rows:
        one = Tally()
        for run in runs:
            for test in row.tests:
                outcomes = run.get(test, Counter(failed=1))
                one.passed += outcomes["passed"]
                one.failed += outcomes["failed"]
                one.skipped += outcomes["skipped"]
                if outcomes["failed"]:
                    one.failures.add(test)
        made.append(one)
    return made


def page(rows: Sequence[Row], tallies: Sequence[Tally], about: dict[str, object]) -> str:
    """The table as Markdown."""
    lines = [
        "# Faults",
        "",
        "What the agent is said to survive, and what came of trying it: real processes on a simulated node, real sockets,",
        "the real library under a simulated driver. Written by `python3 build.py faults --runs N`; do not edit.",
        "",
        *(f"- {key}: {value}" for key, value in about.items()),
        "",
        "| what | fault | cases run | failed | not tried here | checked | scenario | left open |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, one in zip(rows, tallies, strict=True):
        tests = " ".join(f"`{test}`" for test in row.tests)
        lines.append(
            f"| {row.group} | {row.fault} | {one.passed + one.failed} | {one.failed} | {one.skipped} "
            f"| {row.checker} | {tests} | {row.open} |"
        )
    lines += [
        "",
        "## Write boundaries",
        "",
        "Where the agent is killed or held (`agent/boundaries.py`):",
        "",
    ]
    lines += [", ".join(f"`{name}`" for name in sorted(names())), ""]
    return "\n".join(lines)


def described(runs: int) -> dict[str, object]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "runs": runs,
        "commit": commit or "unknown",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} processors, Linux {platform.release()}, no GPU",
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how often (default 1)")
    parser.add_argument("--only", default="", metavar="WORDS", help="faults with these words")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="and FILE.json")
    asked = parser.parse_args(argv)
    rows = [row for row in ROWS if asked.only.lower() in f"{row.group} {row.fault}".lower()]
    if not rows or asked.runs < 1:
        parser.error("no fault of that name" if not rows else "--runs is 1 or more")
    tallies = tally(rows, [run_once(tests_of(rows)) for _ in range(asked.runs)])
    about = described(asked.runs)
    asked.page.write_text(page(rows, tallies, about))
    asked.page.with_suffix(".json").write_text(
        json.dumps(
            {
                **about,
                "rows": [
                    {"group": row.group, "fault": row.fault, "tests": list(row.tests),
                     "checker": row.checker, "open": row.open, "passed": one.passed,
                     "failed": one.failed, "skipped": one.skipped, "failures": sorted(one.failures)}
                    for row, one in zip(rows, tallies, strict=True)
                ],
            },
            indent=1,
        )
        + "\n"
    )  # fmt: skip
    failed = sum(one.failed for one in tallies)
    print(f"{len(rows)} faults, {failed} cases failed; see {asked.page}")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
