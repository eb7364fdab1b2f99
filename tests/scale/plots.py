"""The plots of docs/results/scale.md, drawn from scale.json: `plots.py FILE.json`."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

SHOWN_S = {
    "rest": 3600,
    "API server away": 120,
    "429 to everything": 600,
    "429 gone": 120,
    "agents restarted, few served": 300,
}
USUALLY_S = 70
GROWTH = {
    "pods": "pods on the node",
    "gpus": "GPUs",
    "split_count": "vGPUs per GPU",
    "vgpus_per_pod": "vGPUs per pod",
}
PANELS = (
    ("start_bytes", "start", 1024, "KiB"),
    ("hour_bytes", "an hour at rest", 1024, "KiB"),
    ("register_bytes", "register annotation", 1024, "KiB"),
    ("kubelet_bytes", "message to kubelet", 1024, "KiB"),
)
# No time, no version of the library: the same figures are the same bytes.
NO_METADATA: dict[str, Any] = {"metadata": {"Software": None}}


def storms(found: dict[str, Any], target: Path) -> None:
    """Requests in each second, a panel per scenario."""
    scenarios = found["scenarios"]
    figure, axes = plt.subplots(3, 3, figsize=(13, 9), layout="constrained")
    for axis, (name, seen) in zip(axes.flat, scenarios.items(), strict=True):
        lasts_s = min(SHOWN_S.get(name, USUALLY_S), int(seen["lasts_s"]))
        seconds = range(lasts_s)
        for key, colour, label in (
            ("answered_by_second", "tab:blue", "answered"),
            ("refused_by_second", "tab:red", "refused (429)"),
        ):
            series = seen[key]
            numbers = [series.get(str(second), 0) for second in seconds]
            if any(numbers):
                axis.fill_between(
                    seconds, numbers, step="post", alpha=0.7, color=colour, label=label
                )
        axis.set_title(name, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, lasts_s)
        axis.legend(fontsize=8, loc="upper right")
        axis.set_xlabel("s")
        axis.set_ylabel("requests in a second")
    figure.suptitle(f"{found['about']['nodes']:,} nodes: requests in each second")
    figure.savefig(target, dpi=100, **NO_METADATA)
    plt.close(figure)


def growth(found: dict[str, Any], target: Path) -> None:
    """A column for what grows, a row for what it costs."""
    figure, axes = plt.subplots(
        len(PANELS), len(GROWTH), figsize=(13, 11), layout="constrained", sharey="row"
    )
    for column, (what, name) in enumerate(GROWTH.items()):
        costs = found["growth"][what]
        for row, (key, title, unit, word) in enumerate(PANELS):
            axis = axes[row][column]
            axis.plot([one[what] for one in costs], [one[key] / unit for one in costs], marker="o")
            axis.set_xlim(left=0)
            axis.grid(alpha=0.3)
            if column == 0:
                axis.set_ylabel(f"{title}, {word}")
            if row == len(PANELS) - 1:
                axis.set_xlabel(name)
    for line in axes:  # once all of the row is drawn
        line[0].set_ylim(0, 1.08 * line[0].get_ylim()[1])
    figure.suptitle("What one node costs")
    figure.savefig(target, dpi=100, **NO_METADATA)
    plt.close(figure)


def main() -> int:
    source = Path(sys.argv[1])
    found = json.loads(source.read_text())
    storms(found, source.with_name(f"{source.stem}-storms.png"))
    growth(found, source.with_name(f"{source.stem}-growth.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
