"""What a real Prometheus makes of the metrics, the alerts and the dashboard's queries."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from alert_cases import CASES, Case
from dashboard import RULES, Panel, expressions, filled_in, panels
from metrics_docs import PAGE
from metrics_pages import FORMS, GOLDEN, Form, everything
from peers.prometheus_tools import (
    LINT_ONLY,
    PeersUnavailable,
    Prometheus,
    Promtool,
    promtool,
    running_prometheus,
)
from prometheus_client.parser import text_string_to_metric_families
from use_pictures import GPUS
from waiting import eventually

from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.listeners import TcpListener
from agent.adapters.routes import scraped as scraped_route
from agent.supervisor import Supervisor

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # 20 MB are fetched once


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
                    "interval": case.every,
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


FOUND_BY_KUBERNETES = {
    "__meta_kubernetes_pod_label_app_kubernetes_io_name": "vgpu-agent",
    "__meta_kubernetes_pod_container_port_name": "metrics",
    "__meta_kubernetes_pod_node_name": "node-1",
}


def documented_scrape(way: str) -> dict[str, Any]:
    """The configuration of the page that finds agents so. Debian's Prometheus knows no Kubernetes."""
    blocks = re.findall(r"```yaml\n(scrape_configs:.*?)```", PAGE.read_text(), re.DOTALL)
    [config] = [yaml.safe_load(block) for block in blocks if way in block]
    [job] = config["scrape_configs"]
    assert job.pop(way)
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize(
    ("way", "found", "job_name", "instance"),
    [
        pytest.param(
            "kubernetes_sd_configs", FOUND_BY_KUBERNETES, "vgpu-agent", "node-1", id="pods"
        ),
        pytest.param("static_configs", {}, "vgpu-agent-hosts", "127.0.0.1", id="hosts"),
    ],
)
def test_the_documented_configuration_scrapes_an_agent(
    tool: Promtool,
    tmp_path: Path,
    way: str,
    found: dict[str, str],
    job_name: str,
    instance: str,
) -> None:
    """The labels of the tenant's pod stay, and the alerts' rules load beside it."""
    form = Form(file="", legacy=True, per_process=True)
    listener = TcpListener("127.0.0.1:0")
    routes = {"/metrics": scraped_route(everything(form).render)}
    supervisor = Supervisor([Endpoints([Door(listener, routes)])])
    supervisor.start()
    try:
        port = eventually(lambda: listener.port, what="the endpoint is bound")
        config = documented_scrape(way) | {"rule_files": [str(RULES)]}
        [job] = config["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{port}"], "labels": found}]
        job["scrape_interval"] = "1s"
        with running_prometheus(tmp_path, config) as server:
            server.process.wait_until(
                lambda: _answer(server, "up == 1"), within_s=60, what="the agent was scraped"
            )
            [(labels, _)] = server.query("vgpu_container_memory_limit_bytes{pod='old'}")
            assert labels == {
                "__name__": "vgpu_container_memory_limit_bytes",
                "job": job_name, "instance": instance,
                "namespace": "team", "pod": "old", "container": "main", "gpu": GPUS[0],
            }  # fmt: skip
            [(_, taken)] = server.query("scrape_samples_post_metric_relabeling")
            text = everything(form).render("")[0].decode()
            assert taken == sum(not line.startswith("#") for line in text.splitlines())
    finally:
        supervisor.stop()
        supervisor.join(timeout_s=10)


def _answer(server: Prometheus, expression: str) -> object:
    try:
        return server.query(expression)
    except OSError:  # it is not there yet
        return None


# --- the dashboard -----------------------------------------------------------------------------

TARGET = 'instance="node-1",job="kube-system/vgpu-agent"'
ILL = {  # of a second node, on which little is well
    f'{name}{{instance="node-2",job="kube-system/vgpu-agent"}}': "0+0x30"
    for name in ("vgpu_ready", "vgpu_driver_up")
}
GROWING = ("_total", "_bucket", "_count", "_sum")


def scraped() -> dict[str, str]:
    """The golden page, half an hour long: what is counted grows."""
    form = Form(file="", legacy=True, per_process=True)
    found = dict(ILL)
    for family in text_string_to_metric_families(everything(form).render("")[0].decode()):
        for sample in family.samples:
            labels = ",".join([TARGET, *(f"{k}={json.dumps(v)}" for k, v in sample.labels.items())])
            step = 3 if sample.name.endswith(GROWING) else 0
            found[f"{sample.name}{{{labels}}}"] = f"{sample.value:f}+{step}x30"
    return found


@pytest.mark.parametrize(
    "panel", [pytest.param(panel, id=f"{panel['id']}: {panel['title']}") for panel in panels()]
)
def test_every_query_of_the_dashboard_finds_something(
    tool: Promtool, tmp_path: Path, panel: Panel
) -> None:
    """Numbers for the node that is chosen, and nothing for one that is not there."""
    queries = [expression.removesuffix(" or vector(0)") for expression in expressions(panel)]
    asked = [
        {
            "expr": f"count(({filled_in(query)}) > -Inf) > bool 0",
            "eval_time": "30m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries
    ] + [
        {"expr": filled_in(query, node="elsewhere"), "eval_time": "30m", "exp_samples": []}
        for query in queries
    ]
    series = [{"series": one, "values": values} for one, values in scraped().items()]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": asked}]
    assert not tool.test_rules(tmp_path, {"rule_files": [], "tests": tests})


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        pytest.param("_x30 3+0x40", 3, id="before the first scrape"),
        pytest.param("3+0x70", 0, id="more than an hour ago"),
    ],
)
def test_the_table_has_what_was_refused_within_an_hour(
    tool: Promtool, tmp_path: Path, values: str, refused: int
) -> None:
    labels = f'namespace="team",pod="p",container="c",gpu="{GPUS[0]}",{TARGET}'
    [query] = [
        expression
        for panel in panels()
        for expression in expressions(panel)
        if "allocations_refused" in expression and "[1h]" in expression
    ]
    asked = {
        "expr": f"max({filled_in(query)})",
        "eval_time": "65m",
        "exp_samples": [{"labels": "{}", "value": refused}],
    }
    series = {"series": f"vgpu_container_allocations_refused_total{{{labels}}}", "values": values}
    tests = [{"interval": "1m", "input_series": [series], "promql_expr_test": [asked]}]
    assert not tool.test_rules(tmp_path, {"rule_files": [], "tests": tests})


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        pytest.param("musl", 1, id="limits that do not hold"),
        pytest.param("off", 0, id="none to keep: MIG devices, mode nvidia, switched off"),
    ],
)
def test_the_dashboard_complains_of_limits_where_there_are_some(
    tool: Promtool, tmp_path: Path, reason: str, shown: int
) -> None:
    labels = f'namespace="team",pod="p",container="c",reason="{reason}",{TARGET}'
    queries = [
        filled_in(expression)
        for panel in panels()
        for expression in expressions(panel)
        if "vgpu_container_enforced" in expression
    ]
    assert queries
    asked = [
        {
            "expr": f"count({query.removesuffix(' or vector(0)')}) or vector(0)",
            "eval_time": "5m",
            "exp_samples": [{"labels": "{}", "value": shown}],
        }
        for query in queries
    ]
    series = {"series": f"vgpu_container_enforced{{{labels}}}", "values": "0+0x10"}
    tests = [{"interval": "1m", "input_series": [series], "promql_expr_test": asked}]
    assert not tool.test_rules(tmp_path, {"rule_files": [], "tests": tests})


def test_dcgms_metrics_get_their_pods_as_the_page_says(tool: Promtool, tmp_path: Path) -> None:
    """Dcgm-exporter does not find shares in kubelet's books: their ids have a number."""
    page = (PAGE.parent / "troubleshooting.md").read_text()
    [query] = re.findall(r"```promql\n(.*?)```", page, re.DOTALL)
    dcgm = [f'DCGM_FI_DEV_POWER_USAGE{{UUID="{uuid}",gpu="{n}"}}' for n, uuid in enumerate(GPUS)]
    shares = [
        f'{{container="c",device_uuid="{GPUS[0]}",namespace="team",pod="{pod}",vdevice_index="0"}}'
        for pod in ("a", "b")
    ]
    given = [(f"hami_vgpu_memory_limit_bytes{one}", "5+0x5") for one in shares]
    given += [(one, "70+0x5") for one in dcgm]
    asked = {
        "expr": query,
        "eval_time": "1m",
        "exp_samples": [{"labels": one, "value": 70} for one in shares],
    }
    series = [{"series": name, "values": values} for name, values in given]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}]
    assert not tool.test_rules(tmp_path, {"rule_files": [], "tests": tests})
