"""Draw what a run on a GPU has found: `plots.py gpu.json` writes gpu-shares.png and gpu-step.png beside it.

Needs Matplotlib, and nothing else of this tree. Exit code 3: there is no Matplotlib, or no such file.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MISSING = 3
IN_A_ROW = 4  # panels
Found = Sequence[Mapping[str, Any]]


def shares(pyplot: Any, found: Found) -> Any:
    """What was got over what was wanted, a panel for each load."""
    points = [one for one in found if one["data"] and "got_percent" in one["data"]]
    loads = list(dict.fromkeys(one["check"] for one in points))
    if not loads:
        return None
    columns = min(len(loads), IN_A_ROW)
    rows = -(-len(loads) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(3.4 * columns, 3.6 * rows), sharey=True, squeeze=False
    )
    for panel in panels.flat[len(loads) :]:
        panel.set_axis_off()
    for panel, load in zip(panels.flat, loads, strict=False):
        for alone, name, mark in ((True, "alone", "o"), (False, "in company", "x")):
            some = [
                one["data"] for one in points
                if one["check"] == load and one["name"].endswith("alone") == alone
            ]  # fmt: skip
            wanted, got = ([one[key] for one in some] for key in ("wanted_percent", "got_percent"))
            panel.scatter(wanted, got, marker=mark, label=name)
        panel.plot((0, 100), (0, 100), color="grey", linewidth=0.8)
        panel.set(title=load.split(", ")[-1], xlabel="share that was given, %")
    for row in panels:
        row[0].set_ylabel("work done, % of uncapped work")
    panels[0][0].legend()
    return figure


def step(pyplot: Any, found: Found) -> Any:
    """The course of a share that is changed while the container works."""
    courses = [one["data"] for one in found if one["data"] and "course" in one["data"]]
    if not courses:
        return None
    figure, panel = pyplot.subplots(figsize=(7, 3.2))
    [course, *_] = courses
    panel.plot(*zip(*course["course"], strict=True), label="work done")
    at, wanted = zip(*course["steps"], strict=True)
    end = course["course"][-1][0] if course["course"] else at[-1]
    panel.step((*at, end), (*wanted, wanted[-1]), where="post", linestyle="--", label="limit")
    panel.set(xlabel="s", ylabel="% of uncapped work", ylim=(0, 105))
    panel.legend()
    return figure


PICTURES: Mapping[str, Callable[[Any, Found], Any]] = {"shares": shares, "step": step}


def main(results: Path) -> int:
    """Draw them; print the names of the files."""
    if not results.is_file():
        why = f"{results} is not there; `python3 build.py gpu` writes it on a machine with a GPU"
        print(f"build.py gpu: {why}", file=sys.stderr)  # noqa: T201 - it talks to a person
        return MISSING
    try:
        import matplotlib as mpl
    except ImportError:
        return MISSING
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(results.read_text())["results"]
    drawn = []
    for name, draw in PICTURES.items():
        figure = draw(plt, found)
        if figure is not None:
            path = results.with_name(f"{results.stem}-{name}.png")
            figure.tight_layout()
            figure.savefig(path, dpi=110)
            drawn.append(path.name)
    print(", ".join(drawn) or "nothing to draw")  # noqa: T201 - it talks to a person
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
