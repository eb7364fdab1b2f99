"""The tables of names in docs/metrics.md, from what the agent exposes.

`python -m tests.metrics_docs` writes them anew, between the marks that are there.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from metrics_pages import Form, everything  # noqa: E402 - the path above leads to it
from prometheus_client.metrics_core import Metric  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from agent.adapters import metrics_hami, metrics_use  # noqa: E402
from agent.adapters.metrics_text import SELF_REPORTED, Family  # noqa: E402

PAGE = ROOT / "docs" / "metrics.md"
HEAD = "| name | type | labels | meaning |\n|---|---|---|---|\n"


def declared() -> dict[str, Family]:
    """The families of which there may be many samples, by name."""
    found: dict[str, Family] = {}
    for module in (metrics_use, metrics_hami):
        for value in vars(module).values():
            if isinstance(value, Family):
                found[value.name] = value
            elif isinstance(value, tuple):
                found |= {
                    one[0].name: one[0]
                    for one in value
                    if isinstance(one, tuple) and one and isinstance(one[0], Family)
                }
    return found


def exposed() -> Iterator[tuple[str, Metric]]:
    """Every metric of the page, by the name that one looks for in Prometheus."""
    form = Form(file="", legacy=True, per_process=True)
    for family in text_string_to_metric_families(everything(form).render("")[0].decode()):
        yield family.name + ("_total" if family.type == "counter" else ""), family


def section_of(name: str) -> str:
    """Which of the page's tables it is in."""
    if name.startswith("hami_"):
        return "hami"
    if not name.startswith(("vgpu_", "process_")):
        return "old"
    if name in declared():
        return "use"
    return "agent"


def tables() -> dict[str, str]:
    """Section -> its table."""
    found: dict[str, str] = {}
    known = declared()
    for name, family in exposed():
        if name.startswith("process_"):
            continue
        labels = (
            known[name].labels
            if name in known
            else sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        )
        meaning = family.documentation.replace("|", "\\|")
        if meaning.startswith(SELF_REPORTED):
            meaning = f"**{SELF_REPORTED}**{meaning.removeprefix(SELF_REPORTED)}"
        row = f"| `{name}` | {family.type} | {', '.join(labels)} | {meaning} |\n"
        section = section_of(name)
        found[section] = found.get(section, HEAD) + row
    return found


def with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    for section, table in tables().items():
        marks = rf"(<!-- names: {section} -->\n).*?(<!-- end -->)"
        page, count = re.subn(marks, lambda m, t=table: m[1] + t + m[2], page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the table {section}")
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
