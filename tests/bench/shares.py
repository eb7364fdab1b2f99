"""`python3 build.py shares`: how exactly containers get their shares of GPU time, case by case.

Prints every case with the worst error, in points, that any window of its steady state had; a window is the
longer of 1 s and 10 times the longest kernel. Exit code 1: one was not within what is allowed; 2: no case has the
word in its name. With all of them, docs/results/shares.md is written.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from share_bed import ALONE_POINTS, BESIDE_POINTS, allowed_points  # noqa: E402 - the paths lead there

from tests import provenance  # noqa: E402
from tests.bench.share_case import Case, judged, target_points  # noqa: E402
from tests.bench.share_legend import legend  # noqa: E402
from tests.bench.share_matrix import families  # noqa: E402

PAGE = ROOT / provenance.RESULTS / "shares.md"


@dataclass(frozen=True, slots=True)
class Found:
    """How far off a case was, in points: above 0 too much, below too little."""

    case: Case
    points: float

    @property
    def allowed(self) -> float:
        """Points that it may be off: what an ideal limiter is, where that is more."""
        return max(
            target_points(self.case), allowed_points(len(self.case.tenants), self.case.ideal)
        )

    @property
    def missed(self) -> bool:
        """Whether it was off by more."""
        return abs(self.points) > self.allowed


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _table(head: Sequence[str], lines: Sequence[str]) -> str:
    return "\n".join([_line(*head), "|" + "---|" * len(head), *lines]) + "\n"


def _most(found: Sequence[Found]) -> tuple[str, str]:
    """The most that any had too much, and too little."""
    above, below = (max((sign * one.points for one in found), default=0.0) for sign in (1, -1))
    return (f"{max(0.0, above):.1f}", f"{max(0.0, below):.1f}")


def _cells(text: str) -> str:
    """A name, in which `|` is between threads, as a cell of a table."""
    return text.replace("|", "\\|")


def as_page(found: Mapping[str, Sequence[Found]], about: Mapping[str, str], words: str) -> str:
    """The page: each family, all cases that were missed, and each group of cases."""
    every = [one for family in found.values() for one in family]
    missed = [one for one in every if one.missed]
    by_group: dict[str, list[Found]] = {}
    for one in every:
        by_group.setdefault(one.case.group, []).append(one)
    return (
        "# How exact shares of GPU time are\n\n"
        f"Measured by `{words}` on {about['machine']}, commit {about['commit']}, {about['date']}, "
        "with the simulated GPU, in virtual time. "
        "[compute-share.md](../compute-share.md) says what is behind it.\n\n"
        "A case is one container or several, and what they launch. After 2 s, the share that each really had is "
        "looked at in every window of 1 s (of 10 times its longest kernel, if that is more), and the worst window of all "
        f"counts: points of the GPU, of which {ALONE_POINTS:g} are allowed to one container alone and {BESIDE_POINTS:g} "
        "beside others. A case has the points of its container that is furthest off: above 0 that one had too much, "
        "below 0 too little. Where kernels of 2 us to 200 ms are in one program, an ideal limiter that charges every instant "
        "at once and starts nothing while in debt is off by more; there the hook may be off by "
        "as much as that, and by 1 point more. Of mixes, what a container that waits for its launches would lack "
        "without a limit of its own is not counted.\n\n"
        f"**{len(every)} cases, {len(missed)} missed.**\n\n"
        + _table(
            ("cases of", "number", "most too much", "most too little", "missed"),
            [
                _line(name, len(of), *_most(of), sum(one.missed for one in of))
                for name, of in found.items()
            ],
        )
        + "\n## What was missed\n\n"
        + (
            _table(
                ("case", "limits, %", "points", "allowed"),
                [
                    _line(
                        _cells(one.case.group),
                        one.case.name,
                        f"{one.points:+.1f}",
                        f"{one.allowed:.1f}",
                    )
                    for one in sorted(missed, key=lambda one: -abs(one.points))
                ],
            )
            if missed
            else "Nothing.\n"
        )
        + "\n## Each group of cases\n\n"
        + _table(
            ("group", "cases", "most too much", "most too little", "missed"),
            [
                _line(_cells(name), len(of), *_most(of), sum(one.missed for one in of) or "")
                for name, of in by_group.items()
            ],
        )
        + legend({name: [one.case for one in of] for name, of in found.items()})
    )


def main() -> int:
    """Run the cases that are chosen; 1 when one was missed."""
    parser = argparse.ArgumentParser(prog="build.py shares", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only cases whose name has this in it")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn at random")
    parser.add_argument("--page", type=Path, help="write the page here")
    chosen = parser.parse_args()
    about = provenance.described()  # before it may change
    some = {
        name: [case for case in cases if chosen.word in f"{case.group}, {case.name}"]
        for name, cases in families(chosen.seed).items()
    }
    if not any(some.values()):
        parser.error(
            f"no case has {chosen.word!r} in its name; part of a name in docs/results/shares.md will do"
        )
    print(f"{'case':56} {'limits in %':24} points off")
    found: dict[str, list[Found]] = {}
    for name, cases in some.items():
        found[name] = [Found(*one) for one in zip(cases, judged(cases, chosen.seed), strict=True)]
        for one in found[name]:
            case = one.case
            best = f"  ideal {case.ideal:.1f}" if case.ideal else ""
            mark = "  NOT MET" if one.missed else ""
            print(f"{case.group:56} {case.name:24} {one.points:+5.1f}{best}{mark}", flush=True)
    missed = sum(one.missed for family in found.values() for one in family)
    print(f"{sum(map(len, found.values()))} cases, {missed} missed")
    page = chosen.page or (None if chosen.word else PAGE)
    if page:
        words = " ".join(["python3 build.py shares", *sys.argv[1:]])
        page.write_text(as_page(found, about, words))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
