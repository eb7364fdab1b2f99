"""Whole pages of metrics of a made-up node, as a scrape gets them.

`python -m tests.metrics_pages` writes them anew into tests/golden/; look at what changed.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import use_pictures as pictures  # noqa: E402 - the path above leads to it

from agent.adapters.metrics import Exposed, Metrics  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A way to ask for the page."""

    file: str
    accept: str = ""
    legacy: bool = False
    per_process: bool = False


FORMS = (
    Form(file="metrics.txt"),
    Form(file="metrics-all.txt", legacy=True, per_process=True),
    Form(file="metrics-all.openmetrics", accept=OPENMETRICS, legacy=True, per_process=True),
)


def everything(form: Form) -> Metrics:
    """The metrics of a node on which all kinds of things have happened."""
    metrics = Metrics(
        "1.2.3",
        pictures.Node(pictures.STATES),
        use=lambda: pictures.EVERYTHING,
        bypasses=lambda: pictures.BYPASSES,
        migs=lambda: pictures.MIGS,
        ready=lambda: True,
        exposed=Exposed(
            node_name="node-1",
            legacy=form.legacy,
            per_process=form.per_process,
            revision="0123abcd",
            build_date="2026-11-20",
        ),
        clock=lambda: pictures.NOW_S,
    )
    metrics.api_request("patch", "pods", 200)
    metrics.api_request("watch", "nodes", 0)
    metrics.allocation("granted", 0.004)
    metrics.allocation("no_pending_pod", 3.0)
    metrics.registration("nvidia.com/gpu", "ok")
    for gpu in pictures.GPUS[:2]:
        metrics.gpu_found(gpu)
    metrics.health_transition(pictures.GPUS[1], "unhealthy")
    metrics.xid_error(pictures.GPUS[1], 79)
    metrics.register_write("ok")
    metrics.memory_unit(8 << 20, 5 << 20)
    metrics.grant_mismatch()
    metrics.mig_instance("created")
    metrics.bypass("no grant")
    metrics.limit_change("command", "changed")
    return metrics


def page(form: Form) -> str:
    """What a scrape gets, without the figures of the process itself and the machine's kind."""
    text = everything(form).render(form.accept)[0].decode()
    lines = text.replace("linux/arm64", "linux/amd64").splitlines(keepends=True)
    return "".join(line for line in lines if not _of_the_process(line))


def _of_the_process(line: str) -> bool:
    return line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("process_")


if __name__ == "__main__":
    for form in FORMS:
        (GOLDEN / form.file).write_text(page(form), encoding="utf-8")
