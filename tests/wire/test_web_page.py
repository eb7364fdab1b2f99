"""How the web page is served; what it shows is looked at in a browser, see tests/web."""

import base64
import hashlib
import re
from http import HTTPStatus
from pathlib import Path

import pytest

from agent.adapters.http_messages import Answer
from agent.adapters.web_page import PAGE, policy, web_page
from agent.bundle import web_dir


def served(directory: Path) -> Answer:
    get = web_page(directory)[PAGE].get
    assert get is not None
    return get("")


def test_it_is_served_as_it_lies_there() -> None:
    answer = served(web_dir())
    assert answer.status == HTTPStatus.OK
    assert answer.content_type == "text/html; charset=utf-8"
    assert answer.body == (web_dir() / "index.html").read_bytes()


def test_it_allows_its_own_script_and_style_and_nothing_else() -> None:
    [told] = [
        value for name, value in served(web_dir()).headers if name == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in told.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["connect-src"] == "'self'"
    page = (web_dir() / "index.html").read_text()
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert "unsafe" not in told


@pytest.mark.parametrize(
    "forbidden",
    [
        pytest.param(r"(src|href)=[\"']?(https?:)?//", id="nothing of others"),
        pytest.param(r"https?://", id="no address at all"),
        pytest.param(r"\.(innerHTML|outerHTML)|insertAdjacentHTML|document\.write|\beval\(", id="no text becomes markup"),
        pytest.param(r"<[^>]+\son[a-z]+=|\sstyle=", id="no script and no style in attributes"),
    ],
)  # fmt: skip
def test_the_page_has_none_of_it(forbidden: str) -> None:
    assert not re.search(forbidden, (web_dir() / "index.html").read_text())


def test_the_policy_of_a_page_without_a_script() -> None:
    assert "script-src 'none'; style-src 'none'" in policy("<p>hello</p>")


def test_an_installation_without_the_page_serves_the_rest(tmp_path: Path) -> None:
    assert web_page(tmp_path) == {}
