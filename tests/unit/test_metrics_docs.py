"""docs/metrics.md says what the agent exposes, and the samples have the labels that it says."""

import re

import pytest
from dashboard import RULES, expressions, metrics_in, panels
from metrics_docs import PAGE, declared, exposed, tables, with_tables


def documented() -> set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_tables_are_those_of_the_code() -> None:
    """`python -m tests.metrics_docs` writes them anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page)
    assert set(tables()) == {"use", "agent", "hami", "old"}


def test_every_metric_is_in_a_table_or_in_the_text() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, _ in exposed():
        assert f"`{name}`" in page


@pytest.mark.parametrize("name", sorted(declared()))
def test_samples_have_the_labels_that_are_declared(name: str) -> None:
    families = dict(exposed())
    labels = declared()[name].labels
    assert list(labels) == sorted(labels)
    for sample in families[name].samples:
        assert set(sample.labels) == set(labels)
    assert families[name].samples or name == "hami_mig_device_info"


def test_dashboard_and_alerts_use_documented_names() -> None:
    queries = [query for panel in panels() for query in expressions(panel)]
    asked = {name for query in [*queries, RULES.read_text()] for name in metrics_in(query)}
    asked = {re.sub("_(bucket|count|sum)$", "", name) for name in asked}
    assert {name for name in asked if name.startswith("vgpu_")} <= documented()
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in asked)
