"""The text that goes along with the release: who made its parts, and under which licences."""

from collections.abc import Sequence

from bundling.runtime import ROOT
from bundling.shipped import FULL_TEXTS, NOTICES, Component

LINE = "-" * 100


def third_party(components: Sequence[Component]) -> str:
    """A table of all parts, then every notice once, with the parts it is for."""
    texts: dict[str, list[str]] = {}
    rows = []
    for one in components:
        rows.append(f"{_called(one):<52}{one.licence}")
        for notice in one.notices:
            texts.setdefault(_plain(notice), []).append(_called(one))
    parts = [
        "Parts of vgpu-agent that were made by others, and their licences.",
        "",
        "libc6 is in the container image only. The source of Debian's packages is in its archive,",
        "in the versions named.",
        "",
        *rows,
        "",
        *(_section(", ".join(dict.fromkeys(names)), text) for text, names in texts.items()),
        _section("Apache License 2.0", _plain((ROOT / "LICENSE").read_text())),
        *(_section(name, _plain((NOTICES / f"{name}.txt").read_text())) for name in FULL_TEXTS),
    ]
    return "\n".join(parts) + "\n"


def _called(one: Component) -> str:
    name = f"{one.name} {one.version}".strip()
    return f"{name} (in {one.inside})" if one.inside else name


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _section(title: str, text: str) -> str:
    return f"{LINE}\n{title}\n{LINE}\n\n{text}\n"
