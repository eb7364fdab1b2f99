"""What doctor says: lines for people, a JSON object for programs."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from agent.doctor.finding import Result, Verdict, counts, worst

COLOURS = {
    Verdict.OK: "\x1b[32m",
    Verdict.WARNING: "\x1b[33m",
    Verdict.FAILED: "\x1b[1;31m",
    Verdict.SKIPPED: "\x1b[2m",
}
PLAIN = "\x1b[0m"
VERDICT_CHARS = max(map(len, Verdict))
NARROWEST = 40


def lines_of(result: Result, *, name_chars: int, columns: int, coloured: bool) -> list[str]:
    """A result: verdict, name and evidence; below it, after an arrow, what mends it."""
    verdict = result.finding.verdict
    indent = " " * (VERDICT_CHARS + 2 + name_chars + 2)
    width = max(NARROWEST, columns - len(indent))
    said = textwrap.wrap(printable(result.finding.evidence), width) or [""]
    word = f"{verdict.value:<{VERDICT_CHARS}}"
    if coloured:
        word = f"{COLOURS[verdict]}{word}{PLAIN}"
    found = [f"{word}  {result.check.name:<{name_chars}}  {said[0]}"]
    found += [indent + line for line in said[1:]]
    if result.finding.fix:  # never wrapped: it is there to be copied
        found.append(f"{indent}-> {printable(result.finding.fix)}")
    return found


def summary(results: Sequence[Result]) -> str:
    """The last line."""
    numbers = counts(results)
    return ", ".join(f"{numbers[verdict]} {verdict.value}" for verdict in Verdict)


def as_json(results: Sequence[Result], *, node: str, version: str) -> Mapping[str, Any]:
    """The same for programs; keys are only added, never renamed."""
    return {
        "version": 1,
        "agent_version": version,
        "node": node,
        "verdict": worst(results).value,
        "counts": {verdict.value: number for verdict, number in counts(results).items()},
        "checks": [
            {
                "name": result.check.name,
                "question": result.check.question,
                "verdict": result.finding.verdict.value,
                "evidence": result.finding.evidence,
                "fix": result.finding.fix,
                "needs": list(result.check.needs),
            }
            for result in results
        ],
    }


def printable(text: str) -> str:
    """Without what a file's name or content could do to a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text.replace("\n", "; "))
