"""How are many samples written as text, quickly? Prometheus text format 0.0.4 and OpenMetrics 1.0.

A node of 800 containers has some 20,000 samples. prometheus_client sorts and escapes the labels of
each, which takes six times as long as all that is done here: a container's labels are written once
and used for all of its samples.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and OpenMetrics 1.0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
TOTAL = "_total"
SELF_REPORTED = "Self-reported"  # how the help of what a tenant may forge begins
Row = tuple[str, float | None]  # labels as `written`, and the value; None: there is no sample


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. `labels`: the names that its samples have, in alphabetical order."""

    name: str  # as its samples have it: a counter's ends in "_total"
    labels: tuple[str, ...]
    help: str

    @property
    def kind(self) -> str:
        """What Prometheus calls its type."""
        return "counter" if self.name.endswith(TOTAL) else "gauge"


def written(labels: Mapping[str, str]) -> str:
    """Labels as they stand between the braces, in alphabetical order."""
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items())])


def _escaped(value: str) -> str:
    if '"' in value or "\\" in value or "\n" in value:  # much quicker than to translate each
        return value.translate(ESCAPES)
    return value


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics; all else gets the older text format."""
    return any(
        part.partition(";")[0].strip().lower() == "application/openmetrics-text"
        for part in accept.split(",")
    )


class Page:
    """The text of families, one after the other."""

    def __init__(self, *, openmetrics: bool) -> None:
        self._openmetrics = openmetrics
        self._lines: list[str] = []

    def add(self, family: Family, rows: Iterable[Row]) -> None:
        """Write a family; without samples, too, so that its name can be found."""
        # OpenMetrics calls a family of counters by its name without the suffix.
        head = family.name.removesuffix(TOTAL) if self._openmetrics else family.name
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        if self._openmetrics:
            text = text.replace('"', r"\"")
        self._lines.append(f"# HELP {head} {text}\n# TYPE {head} {family.kind}\n")
        name = family.name
        self._lines += [
            f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
            for labels, value in rows
            if value is not None
        ]

    def encoded(self) -> bytes:
        """All of it in UTF-8, without the end mark of OpenMetrics."""
        return "".join(self._lines).encode("utf-8", "backslashreplace")
