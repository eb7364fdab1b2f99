"""Run the matrix of faults and write what came of it: docs/results/faults.md and faults.json.

run.py [--runs N] [--only WORDS] [--page FILE] [--again]
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import provenance
from tests.faults.boundary_table import Met, chapter, met_by, unmet
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
    met: Met = field(default_factory=Met)


@dataclass
class Seen:
    """How many cases of a test passed, failed and were skipped, and which boundaries they met."""

    cases: Counter[str] = field(default_factory=Counter)
    met: Met = field(default_factory=Met)


def tests_of(rows: Sequence[Row]) -> list[str]:
    return sorted({test for row in rows for test in row.tests})


def run_once(tests: Sequence[str]) -> dict[str, Seen]:
    """By test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        words = ["-m", "pytest", "-q", "-m", NOT_HERE, "-p", "no:cacheprovider"]
        words += ["-n", "2", "--dist", "loadfile", f"--junitxml={report}", *tests]
        environ = os.environ | {"VGPU_TEST_FAULTS": "all"}
        subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, check=False)
        return read(ET.parse(report).getroot())  # noqa: S314 - written by pytest just now


def read(report: ET.Element) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for case in report.iter("testcase"):
        path = case.get("classname", "").replace(".", "/") + ".py"
        function = case.get("name", "").partition("[")[0]
        outcome = "passed"
        for child in case:
            outcome = {"failure": "failed", "error": "failed"}.get(child.tag, outcome)
            outcome = "skipped" if child.tag == "skipped" else outcome
        seen = found.setdefault(f"{path}::{function}", Seen())
        seen.cases[outcome] += 1
        seen.met += met_by(case)
    return found


def tally(rows: Sequence[Row], runs: Sequence[dict[str, Seen]]) -> list[Tally]:
    """Per row; a test that was not reported at all counts as failed."""
    made = []
    for row in rows:
        one = Tally()
        for run in runs:
            for test in row.tests:
                seen = run.get(test, Seen(cases=Counter(failed=1)))
                one.passed += seen.cases["passed"]
                one.failed += seen.cases["failed"]
                one.skipped += seen.cases["skipped"]
                one.met += seen.met
                if seen.cases["failed"]:
                    one.failures.add(test)
        made.append(one)
    return made


def page(rows: Sequence[Row], tallies: Sequence[Tally], about: dict[str, object]) -> str:
    """The table as Markdown."""
    lines = [
        "# Faults",
        "",
        "What the agent is said to survive, and what came of trying it. The agent, and the library in tenants, are the real",
        "ones, in processes of their own, with real sockets and files; the driver is simulated, and kubelet, API server and",
        "scheduler are stand-ins inside the test: the last column says where real ones are tried. Rows of `tests/unit`, and some",
        "of `tests/soak` and `tests/wire`, call parts of the agent directly.",
        "Written by the command `python3 build.py faults`; do not edit.",
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
    return "\n".join([*lines, "", *chapter(names(), named(rows, tallies))])


def named(rows: Sequence[Row], tallies: Sequence[Tally]) -> list[tuple[str, Met]]:
    return [(f"{row.group}: {row.fault}", one.met) for row, one in zip(rows, tallies, strict=True)]


def recorded(
    records: Sequence[Mapping[str, Any]], rows: Sequence[Row]
) -> tuple[list[Row], list[Tally]]:
    """What an earlier run recorded, and today's words on what it leaves open.

    It is said to have checked no more than it did: today's words are taken where they claim less.
    """
    now = {(row.group, row.fault): row for row in rows}
    made, tallies = [], []
    for one in records:
        then = Row(**{name: one[name] for name in ("group", "fault", "checker", "open")},
                   tests=tuple(one["tests"]))  # fmt: skip
        today = now.get((then.group, then.fault), then)
        less = claims(today.checker) <= claims(then.checker)
        checker = today.checker if less else then.checker
        made.append(replace(then, checker=checker, open=today.open))
        counts = {name: one[name] for name in ("passed", "failed", "skipped")}
        met = Met(killed=Counter(one.get("killed_at", {})), held=Counter(one.get("held_at", {})))
        tallies.append(Tally(**counts, failures=set(one["failures"]), met=met))
    return made, tallies


def claims(checker: str) -> set[str]:
    return set(re.split("[;,:] ", checker))


def described(runs: int, words: Sequence[str]) -> dict[str, object]:
    """What the page is of; `words`: of the command."""
    return {
        "command": f"`{shlex.join(['python3', 'build.py', 'faults', *words])}`",
        "runs": runs,
        **provenance.described(),
        "GPUs": "none; a simulated driver",
    }


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how often (default 1)")
    parser.add_argument("--only", default="", metavar="WORDS", help="faults with these words")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="and FILE.json")
    parser.add_argument("--again", action="store_true", help="the page of the last run")
    asked = parser.parse_args(argv)
    rows = [row for row in ROWS if asked.only.lower() in f"{row.group} {row.fault}".lower()]
    if not rows or asked.runs < 1:
        parser.error("no fault of that name" if not rows else "--runs is 1 or more")
    about = described(asked.runs, argv)
    if asked.again:
        about = json.loads(asked.page.with_suffix(".json").read_text())
        records = about.pop("rows")
        about.pop("boundaries_unmet", None)
        rows, tallies = recorded(records, ROWS)
    else:
        tallies = tally(rows, [run_once(tests_of(rows)) for _ in range(asked.runs)])
    write(asked.page, rows, tallies, about)
    failed = sum(one.failed for one in tallies)
    print(f"{len(rows)} faults, {failed} cases failed; see {asked.page}")  # noqa: T201
    return 1 if failed else 0


def write(
    path: Path, rows: Sequence[Row], tallies: Sequence[Tally], about: dict[str, object]
) -> None:
    """The page, and the same as JSON beside it."""
    path.write_text(page(rows, tallies, about))
    path.with_suffix(".json").write_text(
        json.dumps(
            {
                **about,
                "rows": [
                    {"group": row.group, "fault": row.fault, "tests": list(row.tests),
                     "checker": row.checker, "open": row.open, "passed": one.passed,
                     "failed": one.failed, "skipped": one.skipped, "failures": sorted(one.failures),
                     "killed_at": dict(one.met.killed), "held_at": dict(one.met.held)}
                    for row, one in zip(rows, tallies, strict=True)
                ],
                "boundaries_unmet": unmet(names(), named(rows, tallies)),
            },
            indent=1,
        )
        + "\n"
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
