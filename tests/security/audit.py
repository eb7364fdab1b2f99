"""`build.py audit`: the pins, the licences, the bill of materials, known vulnerabilities, our own rights.

Writes docs/results/security.md. Only an advisory service needs a network: where none answers, this is
said, and nothing fails for its sake.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "packaging")]

from tests.security.dependencies import (
    EXCEPTIONS,
    REQUIREMENTS,
    Advice,
    Pin,
    advisories,
    licences,
    locks,
    wrong_bill,
    wrong_licences,
    wrong_pins,
)
from tests.security.pod_security import EXCEPTIONS as POD_EXCEPTIONS
from tests.security.pod_security import controls
from tests.security.unit_exposure import exposure

UNANSWERED = "no service answered, so nothing is known"
PAGE = ROOT / "docs" / "results" / "security.md"
# Of what may be asked: what is in the release, and what makes and tests it.
ASKED = ("frozen", "run", "hook", "dev", "dist")


def bill_of_dist() -> Mapping[str, object] | None:
    """The bill of the release in dist/; None: no release was made here."""
    for path in sorted((ROOT / "dist").glob("*.cdx.json")):
        told: Mapping[str, object] = json.loads(path.read_text())
        return told
    return None


def wrong_locks(found: Mapping[str, Sequence[Pin]]) -> list[str]:
    """What is wrong with pins and licences of all lock files."""
    wrong, told = [], licences()
    for name, listed in found.items():
        asked = REQUIREMENTS / f"{name}.in"
        wrong += wrong_pins(name, listed, asked.read_text() if asked.is_file() else "")
        wrong += wrong_licences(listed, told)
    return sorted(set(wrong))


def lock_rows(found: Mapping[str, Sequence[Pin]], advice: Mapping[str, Advice]) -> list[str]:
    """A row of the page for each lock file."""
    told, rows = licences(), []
    for name, listed in found.items():
        looked = sum(pin.name in told for pin in listed)
        said = advice.get(name, Advice(0, ()))
        answer = f"{len(said.found)} in {said.asked} asked" if said.asked else UNANSWERED
        answer = answer if name in advice else "not asked"
        hashes = sum(pin.hashes for pin in listed)
        rows.append(f"| {name}.lock | {len(listed)} | {hashes} | {looked} | {answer} |")
    return rows


def of_the_bill(bill: Mapping[str, object] | None, wrong: Sequence[str]) -> str:
    """What the page says of the release's bill of materials."""
    if bill is None:
        return "No release was made where this was written: `python3 build.py dist` makes its bill."
    parts = bill["components"]
    assert isinstance(parts, list)
    more = f"Wrong: {'; '.join(wrong)}." if wrong else "Each has a licence that is allowed."
    return f"CycloneDX 1.6, {len(parts)} components, in the versions of `frozen.lock`. {more}"


def of_the_unit() -> list[str]:
    """What the page says of the service."""
    found = exposure()
    if found is None:
        return ["No systemd-analyze where this was written."]
    rows = [
        f"| `{name.replace('|', ' or ')}` | {text} | {weight} |"
        for name, text, weight in found.left_open
    ]
    unit = "packaging/systemd/vgpu-agent.service"
    return [
        f"`systemd-analyze security` of `{unit}`: **{found.score}** of 10 (0 is best), {found.version}.",
        "What is left open, and what it adds:",
        "",
        "| setting | what it leaves | weight |",
        "|---|---|---|",
        *rows,
    ]


def of_the_pod() -> list[str]:
    """What the page says of the DaemonSet's pod."""
    kept = controls()
    return [
        "| control of the restricted profile | kept | exception |",
        "|---|---|---|",
        *(
            f"| {what} | {'yes' if so else 'no'} | {POD_EXCEPTIONS.get(what, '')} |"
            for what, so in kept.items()
        ),
    ]


def page(
    found: Mapping[str, Sequence[Pin]],
    advice: Mapping[str, Advice],
    bill: Mapping[str, object] | None,
    wrong: Sequence[str],
    wrong_in_bill: Sequence[str],
) -> str:
    """The page as Markdown."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    exceptions = [f"| {name} | {spdx} | {why} |" for name, (spdx, why) in EXCEPTIONS.items()]
    known = [line for said in advice.values() for line in said.found]
    return "\n".join(
        [
            "# Security in figures",
            "",
            "Written by `python3 build.py audit`; do not edit. What is claimed, and what shows it:",
            "[threat model](../threat-model.md).",
            "",
            f"- date: {datetime.now(UTC):%Y-%m-%d}",
            f"- commit: {commit or 'unknown'}",
            "",
            "## Dependencies",
            "",
            "Every package is pinned with the SHA-256 of its files. Licences are those that installed packages tell.",
            "",
            "| lock file | packages | hashes | licences looked at | known vulnerabilities |",
            "|---|---|---|---|---|",
            *lock_rows(found, advice),
            "",
            *([f"- {line}" for line in [*wrong, *known]] or ["Nothing is wrong with them."]),
            "",
            "## The release",
            "",
            of_the_bill(bill, wrong_in_bill),
            "",
            "| part | licence that is allowed for it alone | because |",
            "|---|---|---|",
            *exceptions,
            "",
            "## The service",
            "",
            *of_the_unit(),
            "",
            "## The DaemonSet",
            "",
            *of_the_pod(),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: something is wrong, or a vulnerability is known."""
    parser = argparse.ArgumentParser(prog="build.py audit", description=__doc__)
    parser.add_argument("--offline", action="store_true", help="ask no advisory service")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    asked = parser.parse_args(arguments)
    found = locks()
    bill = bill_of_dist()
    wrong = wrong_locks(found)
    in_bill = wrong_bill(bill, found["frozen"]) if bill is not None else []
    advice = {} if asked.offline else {name: advisories(name) for name in ASKED}
    known = [line for said in advice.values() for line in said.found]
    asked.page.write_text(page(found, advice, bill, wrong, in_bill))
    print(f"{sum(map(len, found.values()))} pins in {len(found)} lock files")
    for name, said in advice.items():
        answer = f"asked for {said.asked} packages" if said.asked else f"no answer ({said.why})"
        print(f"known vulnerabilities of {name}.lock: {answer}")
    if not any(said.asked for said in advice.values()):
        print("No advisory service answered: nothing is known of vulnerabilities.")
    for line in [*wrong, *in_bill, *known]:
        print(f"wrong: {line}")
    return 1 if wrong or in_bill or known else 0


if __name__ == "__main__":
    raise SystemExit(main())
