"""What a real Prometheus makes of the metrics, the alerts and the dashboard's queries."""

from pathlib import Path

import pytest
import yaml
from alert_cases import CASES, Case
from metrics_pages import FORMS, GOLDEN
from peers.prometheus_tools import LINT_ONLY, PeersUnavailable, Promtool, promtool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "packaging" / "prometheus" / "vgpu-agent.rules.yaml"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]  # 20 MB are fetched once


@pytest.fixture(scope="module")
def tool() -> Promtool:
    try:
        return promtool()
    except PeersUnavailable as error:
        pytest.skip(str(error))


# --- the page ----------------------------------------------------------------------------------


def test_the_page_is_as_prometheus_likes_it(tool: Promtool) -> None:
    done = tool.run("check", "metrics", text=(GOLDEN / "metrics.txt").read_text())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_of_hamis_old_names_prometheus_dislikes_the_style_alone(tool: Promtool) -> None:
    done = tool.run("check", "metrics", text=(GOLDEN / "metrics-all.txt").read_text())
    assert done.returncode == LINT_ONLY
    for line in (done.stdout + done.stderr).splitlines():
        assert "snake_case" in line, line


def test_every_text_page_is_checked() -> None:
    assert {form.file for form in FORMS if not form.accept} == {"metrics.txt", "metrics-all.txt"}


# --- the alerts --------------------------------------------------------------------------------


def test_the_rules_are_valid(tool: Promtool) -> None:
    done = tool.run("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    alerts = {rule["alert"] for rule in rules}
    assert {case.alert for case in CASES if case.fires} == alerts
    assert {case.alert for case in CASES if not case.fires} == alerts


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.alert} {'fires' if case.fires else 'is quiet'}: {case.why}")
        for case in CASES
    ],
)
def test_alerts(tool: Promtool, tmp_path: Path, case: Case) -> None:
    """It fires, and no other does."""
    firing = [{"labels": f'{{alertname="{case.alert}"}}', "value": 1}] if case.fires else []
    wrong = tool.test_rules(
        tmp_path,
        {
            "rule_files": [str(RULES)],
            "evaluation_interval": "1m",
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": series, "values": values}
                        for series, values in case.series.items()
                    ],
                    "promql_expr_test": [
                        {
                            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                            "eval_time": case.at,
                            "exp_samples": firing,
                        }
                    ],
                }
            ],
        },
    )
    assert not wrong
