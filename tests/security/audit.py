"""`build.py audit`: the pins, the licences, the bill of materials, known vulnerabilities, our own rights.

Writes docs/results/security.md. Only an advisory service needs a network: where none answers, this is
said, and nothing fails for its sake. --advisories takes a file in its place.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "packaging")]

from peers.debian_archive import PeersUnavailable

from tests import provenance
from tests.security import advisories as files
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
from tests.security.pod_security import REASONS, controls, difference, every_choice
from tests.security.rights import MISSED
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
    pypi = sum(str(part.get("purl", "")).startswith("pkg:pypi/") for part in parts)
    return (
        f"CycloneDX 1.6, {len(parts)} components, {pypi} of them from PyPI in the versions of "
        f"`frozen.lock`, among them each that `run.in` asks for. {more} That every package of which "
        "a module is inside is listed is looked at by `tests/bundle/test_sbom.py`. For the others "
        "than those from PyPI (Python itself, OpenSSL, the C libraries) nobody is asked about "
        "vulnerabilities."
    )


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


def of_the_choices() -> tuple[list[str], list[str]]:
    """What the page says of components and overlays, and what is wrong with them."""
    try:
        pods = every_choice()
    except PeersUnavailable as error:
        return [f"Not looked at where this was written: {error}."], []
    base = pods["base"]
    rows, wrong = [], []
    for name, pod in pods.items():
        if name == "base":
            continue
        changed = difference(base, pod)
        if changed and not REASONS.get(name):
            wrong.append(f"packaging/daemonset/{name} asks for more, and no reason is written")
        rows.append(f"| `{name}` | {changed or 'nothing'} | {REASONS.get(name, '')} |")
    return ["| choice | beside the base | because |", "|---|---|---|", *rows], wrong


def of_the_rights() -> list[str]:
    """What the page says of the account's rights."""
    rows = [
        f"| {verb} {resource} | {one.missed} | {one.still} | `{one.test}` |"
        for (verb, resource), one in MISSED.items()
    ]
    return ["| right | missed without it alone | still so | test |", "|---|---|---|---|", *rows]


def of_vulnerabilities(advice: Mapping[str, Advice], told: str) -> str:
    """What the page says of what is known; `told`: of a file that was given."""
    if told:
        return f"Known vulnerabilities: {told}."
    if any(said.asked for said in advice.values()):
        return "Known vulnerabilities: those that OSV's service told."
    return (
        "**Of known vulnerabilities nothing is known**: no advisory service was asked, or none "
        "answered, and no file of advisories was given (`--advisories FILE`, an export of OSV). "
        "Pins, hashes, licences and the bill of materials need none and were looked at."
    )


def page(
    found: Mapping[str, Sequence[Pin]],
    advice: Mapping[str, Advice],
    bill: Mapping[str, object] | None,
    wrong: Sequence[str],
    wrong_in_bill: Sequence[str],
    *,
    told: str,
    choices: Sequence[str],
) -> str:
    """The page as Markdown."""
    exceptions = [f"| {name} | {spdx} | {why} |" for name, (spdx, why) in EXCEPTIONS.items()]
    known = sorted({line for said in advice.values() for line in said.found})
    return "\n".join(
        [
            "# Security in figures",
            "",
            "Written by `python3 build.py audit`; do not edit. What is claimed, and what shows it:",
            "[threat model](../threat-model.md).",
            "",
            *provenance.listed(provenance.described()),
            "",
            "## Dependencies",
            "",
            "Every package is pinned with the SHA-256 of its files. Licences are those that installed packages tell.",
            of_vulnerabilities(advice, told),
            "",
            "| lock file | packages | hashes | licences looked at | known vulnerabilities |",
            "|---|---|---|---|---|",
            *lock_rows(found, advice),
            "",
            *(
                [f"- {line}" for line in [*wrong, *known]]
                or ["Nothing is wrong with pins and licences."]
            ),
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
            "### Components and overlays",
            "",
            "As `kustomize build` makes them: what the pod or its account has beside what the base gives.",
            "",
            *choices,
            "",
            "### The account's rights",
            "",
            "Each was taken away alone by the stand-in API server (`tests/security/test_rights.py`). In every case",
            "nothing else was refused, and the agent's log named the right: ``allow `VERB` on `RESOURCE` in the agent's",
            "ClusterRole``. With all of them a whole story asks for each, and for nothing else. The real API server holds",
            "the same role in the tests of `tests/cluster`.",
            "",
            *of_the_rights(),
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1: something is wrong, or a vulnerability is known."""
    parser = argparse.ArgumentParser(prog="build.py audit", description=__doc__)
    parser.add_argument(
        "--advisories", type=Path, metavar="FILE", help="match this export of OSV; ask no service"
    )
    parser.add_argument(
        "--quick", action="store_true", help="leave out what is built: overlays, and the bill"
    )
    parser.add_argument("--offline", action="store_true", help="ask no advisory service")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    asked = parser.parse_args(arguments)
    found, told = locks(), ""
    bill = None if asked.quick else bill_of_dist()
    wrong = wrong_locks(found)
    in_bill = (
        wrong_bill(bill, found["frozen"], (REQUIREMENTS / "run.in").read_text())
        if bill is not None
        else []
    )
    if asked.advisories is not None:
        try:
            told_of = files.read(asked.advisories)
            advice = {name: files.advice(told_of, pins) for name, pins in found.items()}
        except ValueError as error:
            parser.error(str(error))
        told = f"those of the {len(told_of)} advisories of the file `{asked.advisories.name}`"
    else:
        advice = {} if asked.offline else {name: advisories(name) for name in ASKED}
    choices, wrong_choices = ["Not looked at."], []
    if not asked.quick:
        choices, wrong_choices = of_the_choices()
    wrong += wrong_choices
    known = sorted({line for said in advice.values() for line in said.found})
    asked.page.write_text(page(found, advice, bill, wrong, in_bill, told=told, choices=choices))
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
