"""The Grafana dashboard, as tests read it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "packaging" / "grafana" / "vgpu-agent.json"
RULES = ROOT / "packaging" / "prometheus" / "vgpu-agent.rules.yaml"
Panel = dict[str, Any]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def panels() -> list[Panel]:
    """All that show something; rows are left out."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions(panel: Panel) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


def filled_in(expression: str, *, node: str = ".*") -> str:
    """As Grafana sends it."""
    values = {"node": node, "namespace": ".*", "pod": ".*", "__rate_interval": "5m"}
    for name, value in values.items():
        expression = re.sub(rf"\${name}\b", value, expression)
    return expression


def metrics_in(expression: str) -> Iterator[str]:
    """Names of metrics that a query asks for."""
    yield from re.findall(r"\b((?:vgpu|hami|process)_[a-z0-9_]+)", expression)
