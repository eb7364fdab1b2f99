"""How the agent is asked on its node: the examples in docs/, and the web page of the real agent."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.bundle import web_dir
from agent.sim.node import Ask, SimNode
from tests.e2e.conftest import NodeMaker

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("local-api.md", "live-limits.md")
ASKS = [Ask(memory_mib=16384, core_percent=60)]


def examples(page: str) -> list[str]:
    """The lines of a page that ask the agent with curl, put together where they go on."""
    text = (DOCS / page).read_text().replace("\\\n", " ")
    return re.findall(r"^curl .*$", text, re.MULTILINE)


def curl(node: SimNode, command: str) -> str:
    """Run an example on this node."""
    here = command.replace("/run/vgpu-agent", str(node.root / "run"))
    here = here.replace(":9394", f":{node.metrics_port}")
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", here.replace("curl ", "curl -sS ", 1)],
                         capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, ""), here
    return ran.stdout


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_the_examples_in_the_documentation(make_node: NodeMaker) -> None:
    node = make_node("--accounting-interval", "0.2s")
    assert node.run_pod("train-0", ASKS).admitted.ok
    shown = [example for page in PAGES for example in examples(page)]
    assert len(shown) >= 6
    for example in shown:
        if "jq" in example and not shutil.which("jq"):
            continue
        told = curl(node, example)
        if "/v1/limits" in example:
            answer = json.loads(told)
            assert answer["gpus"][0]["memory_limit_bytes"] == 8 << 30, told
            assert answer["gpus"][0]["core_permille"] == 400, told
        elif example.endswith("/v1/use"):
            assert json.loads(told)["version"] == 1
        elif example.endswith("/readyz"):
            assert told == "ok\n"
        else:
            assert "jq" in example, "an example of which it is known what it should tell"


def test_the_web_page_is_served(make_node: NodeMaker) -> None:
    page = (web_dir() / "index.html").read_text()
    node = make_node(gpus=1)
    assert node.fetch("/") == (200, page)
    read, control = (f"curl --unix-socket /run/vgpu-agent/{name}.sock http://agent/" for name in ("read", "control"))  # fmt: skip
    if shutil.which("curl"):
        assert curl(node, read) == page
        assert "there are only:" in curl(node, control)


def test_the_web_page_can_be_switched_off(make_node: NodeMaker) -> None:
    node = make_node("--web-page", "off", gpus=1)
    assert [node.fetch(path)[0] for path in ("/", "/v1/use", "/metrics")] == [404, 404, 200]
    assert node.run_plain("top", "--json", "--socket", str(node.root / "run" / "read.sock")).returncode == 0  # fmt: skip
