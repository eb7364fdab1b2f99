"""The dashboard is one that Grafana can load anywhere, and asks for nothing that is not there."""

import itertools
import re

import pytest
import yaml
from dashboard import RULES, Panel, dashboard, expressions, filled_in, metrics_in, panels
from metrics_pages import Form, everything
from prometheus_client.parser import text_string_to_metric_families

KINDS = {"row", "stat", "table", "timeseries", "state-timeline"}
UNITS = {
    "bytes", "celsius", "none", "ops", "percentunit", "reqps", "s", "watt",
}  # fmt: skip
EVERY_PANEL = [pytest.param(panel, id=f"{panel['id']}: {panel['title']}") for panel in panels()]


def names() -> set[str]:
    """Of all samples that the agent has."""
    text = everything(Form(file="", legacy=True, per_process=True)).render("")[0].decode()
    return {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }


def test_it_has_no_data_source_or_id_of_its_own() -> None:
    found = dashboard()
    assert "id" not in found
    assert found["uid"] == "vgpu-agent"
    sources = re.findall(r'"uid": ?"([^"]*)"', str(found).replace("'", '"'))
    assert set(sources) == {"vgpu-agent", "${datasource}"}


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    assert {panel["type"] for panel in dashboard()["panels"]} == KINDS


def test_no_panel_covers_another() -> None:
    def cells(panel: Panel) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24
        return set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )

    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        assert not taken & cells(panel), panel["title"]
        taken |= cells(panel)


def test_the_variables_narrow_one_after_the_other() -> None:
    variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
    assert list(variables) == ["datasource", "node", "namespace", "pod"]
    assert variables["datasource"]["type"] == "datasource"
    for name in ("node", "namespace", "pod"):
        assert variables[name]["includeAll"]
        query = variables[name]["query"]["query"]
        assert query.startswith("label_values(")
        assert set(metrics_in(query)) <= names()
        assert "$" not in filled_in(query)


@pytest.mark.parametrize("panel", EVERY_PANEL)
def test_panels(panel: Panel) -> None:
    assert panel["description"].endswith(".")
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["fieldConfig"]["defaults"].get("unit", "none") in UNITS
    references = [target["refId"] for target in panel["targets"]]
    assert references
    assert len(references) == len(set(references))
    for target in panel["targets"]:
        assert target["datasource"]["uid"] == "${datasource}"
        assert target["instant"] != target["range"]
        assert target["expr"].strip()


@pytest.mark.parametrize("panel", EVERY_PANEL)
def test_every_column_of_a_table_has_a_name(panel: Panel) -> None:
    if panel["type"] != "table":
        return
    _, organize = panel["transformations"]
    renamed = organize["options"]["renameByName"]
    hidden = organize["options"]["excludeByName"]
    columns = (
        [f"Value #{target['refId']}" for target in panel["targets"]]
        if len(panel["targets"]) > 1
        else ["Value"]
    )
    assert all(column in renamed or column in hidden for column in columns)
    for override in panel["fieldConfig"]["overrides"]:
        assert override["matcher"]["options"] in renamed.values()


@pytest.mark.parametrize("panel", EVERY_PANEL)
def test_every_query_asks_for_what_there_is(panel: Panel) -> None:
    for expression in expressions(panel):
        asked = set(metrics_in(expression))
        assert asked
        assert asked <= names()
        assert "$" not in filled_in(expression)
        assert expression.count('instance=~"$node"') >= len(asked)


def test_every_alert_asks_for_what_there_is_and_says_what_to_do() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        asked = set(metrics_in(rule["expr"]))
        assert asked <= names(), rule["alert"]
        assert asked or rule["expr"].startswith("up{")
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert len(rule["annotations"]["summary"]) <= 130
        assert rule["annotations"]["description"].endswith((".", "?"))
