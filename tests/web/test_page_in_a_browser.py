"""The web page in a real browser: what it shows, to whom, and what it lets nobody do."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import use_pictures
from browser import MISSING, Browser, Page, chromium
from use_pictures import GIB, GPUS
from waiting import eventually

from agent.adapters.endpoints import Door, Endpoints
from agent.adapters.listeners import TcpListener
from agent.adapters.routes import shown
from agent.adapters.web_page import web_page
from agent.bundle import web_dir
from agent.domain.accounting import NodeUse, Tier
from agent.domain.enforcement import EXPLAINED, ContainerState, Reason, State
from agent.domain.gpu import Gpu, GpuInventory
from agent.domain.node_picture import NodePicture
from agent.domain.plain_figures import share_text, size_text, span_text
from agent.domain.use_json import encode
from agent.supervisor import Supervisor

pytestmark = [
    pytest.mark.skipif(not chromium(), reason=MISSING),
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("browser"),
]
SICK = GpuInventory.of(
    (
        Gpu(uuid=GPUS[0], index=0, name="NVIDIA A40", memory_mib=46068),
        Gpu(uuid=GPUS[1], index=1, name="NVIDIA A40", memory_mib=46068, unhealthy_reason="XID 79"),
    )
)
HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=2</script>'
PARTS = """
Object.fromEntries([...document.querySelectorAll("main .gpu")].map((gpu) => [
  gpu.getAttribute("aria-label"), {
    bars: [...gpu.querySelectorAll(".bar")].map((bar) => bar.innerText.replace(/\\s+/g, " ").trim()),
    problems: [...gpu.querySelectorAll(":scope > .problems li")].map((item) => item.textContent),
    rows: [...gpu.querySelectorAll("tbody tr")].map((row) => [
      row.querySelector("th > span").textContent,
      ...[...row.querySelectorAll("td")].map((cell) => cell.textContent),
      ...[...row.querySelectorAll("li")].map((item) => item.textContent),
    ]),
  }]))
"""
WIDE = """
[...document.querySelectorAll("main li")].every((item) =>
  item.getBoundingClientRect().width > 0.85 * item.closest(".gpu").getBoundingClientRect().width)
"""
CONTRAST = """
(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.startsWith("rgba")) { return colour; }
    }
  };
  return [...document.querySelectorAll("body *")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .filter((e) => !["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName))
    .map((e) => {
      const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), e.textContent];
    }).sort((x, y) => x[0] - y[0])[0];
})()
"""


@dataclass
class Node:
    """An agent's page, with figures as the test sets them."""

    use: NodeUse = field(default_factory=lambda: use_pictures.EVERYTHING)
    name: str = "gpu-node-1"
    inventory: GpuInventory = SICK
    body: bytes | None = None  # instead of them
    listener: TcpListener = field(default_factory=lambda: TcpListener("127.0.0.1:0"))
    supervisor: Supervisor = field(init=False)

    def start(self) -> str:
        routes = {**web_page(web_dir()), "/v1/use": shown(self.document)}
        self.supervisor = Supervisor([Endpoints([Door(self.listener, routes)])])
        self.supervisor.start()
        port = eventually(lambda: self.listener.port)
        return f"http://127.0.0.1:{port}/"

    def document(self) -> bytes:
        if self.body is not None:
            return self.body
        told = NodePicture.of(
            self.use, self.inventory, answered_at_s=use_pictures.NOW_S, node=self.name,
            agent_version="0.4.0", missing=("not registered with kubelet",),
        )  # fmt: skip
        return json.dumps(encode(told)).encode()

    def stop(self) -> None:
        self.supervisor.stop()
        assert self.supervisor.join(timeout_s=10) == 0


@pytest.fixture(scope="module", name="browser")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(name="node")
def a_node() -> Iterator[Node]:
    node = Node()
    yield node
    node.stop()


def loaded(browser: Browser, node: Node, **size: int | str) -> Page:
    page = browser.open(**size)  # type: ignore[arg-type] # width, height, scheme
    page.go(node.start())
    page.wait('document.querySelectorAll("main .gpu").length > 0')
    return page


@pytest.mark.parametrize(
    ("width", "scheme", "background"),
    [
        pytest.param(1200, "light", "rgb(246, 247, 249)", id="light"),
        pytest.param(1200, "dark", "rgb(20, 23, 26)", id="dark"),
        pytest.param(390, "light", "rgb(246, 247, 249)", id="phone, light"),
        pytest.param(390, "dark", "rgb(20, 23, 26)", id="phone, dark"),
        pytest.param(320, "dark", "rgb(20, 23, 26)", id="small phone"),
    ],
)
def test_what_is_shown(
    browser: Browser, node: Node, tmp_path: Path, width: int, scheme: str, background: str
) -> None:
    page = loaded(browser, node, width=width, scheme=scheme)
    address = page.tell("location.href")
    assert page.tell("document.title") == "GPUs of gpu-node-1"
    assert page.tell('document.getElementById("about").textContent') == (
        "2 GPUs, 2 containers · vgpu-agent 0.4.0 · seen 1 s ago"
    )
    assert (
        page.tell('document.getElementById("problems").innerText') == "not registered with kubelet"
    )
    assert page.tell(PARTS) == {
        "GPU 0 NVIDIA A40": {
            "bars": ["memory 9 GiB of 45 GiB", "compute 83 %"],
            "problems": [],
            "rows": [
                ["team/infer-0/main", "5 GiB of 8 GiB", "29 % of 30 % +13 %", "-", "7 s ago", "0",
                 "hook"],
                ["team/old/main", "1 GiB of 2 GiB", "- of 10 %", "-", "-", "1", "hami-core",
                 f"limits do not hold: {EXPLAINED[Reason.MUSL]}",
                 "its figures for GPU 0 are not true: it counts 1 GiB, the driver 3 GiB",
                 "waits on GPU 0 for a container of higher priority"],
            ],
        },
        'GPU 1 NVIDIA "odd"\\name': {
            "bars": ["memory not told", "compute not told"],
            "problems": ["unhealthy: XID 79"],
            "rows": [["team/infer-0/main", "-", "-", "-", "7 s ago", "0", "hook"]],
        },
    }  # fmt: skip
    assert page.tell("getComputedStyle(document.body).backgroundColor") == background
    assert page.tell("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
    assert page.tell(WIDE), "what is wrong has the whole width of its card"
    contrast, text = page.tell(CONTRAST)
    assert contrast >= 4.5, text
    image = page.screenshot(tmp_path / "page.png")
    assert image.startswith(b"\x89PNG")
    assert len(image) > 20_000, "there is something to be seen"
    assert set(page.requested()) <= {address, f"{address}v1/use", "data:,"}
    assert page.complaints() == []
    page.close()


@pytest.mark.parametrize("width", [1200, 390])
def test_screen_readers(browser: Browser, node: Node, width: int) -> None:
    page = loaded(browser, node, width=width)
    roles = page.roles()
    for wanted in (
        ("heading", "GPUs of gpu-node-1"),
        ("table", "containers on GPU 0 NVIDIA A40"),
        ("columnheader", "Throttled"),
        ("meter", "memory"),
        ("meter", "compute"),
        ("meter", "memory of its limit"),
    ):
        assert wanted in roles
    assert any(role == "rowheader" and name.startswith("team/old/main") for role, name in roles)
    assert page.tell('document.querySelector(".rail").getAttribute("aria-valuetext")') == "9 GiB of 45 GiB"  # fmt: skip
    page.close()


def test_it_follows(browser: Browser, node: Node) -> None:
    page = loaded(browser, node)
    page.tell('window.row = document.querySelector("tbody tr"); 1')
    one, other = use_pictures.EVERYTHING.containers
    used = replace(one.devices[0].reported, used_bytes=9 * GIB)  # type: ignore[type-var] # it is one
    device = replace(
        one.devices[0], reported=used,
        totals=replace(one.devices[0].totals, gpu_ns=14_500_000_000, throttled_ns=1_250_000_000),
    )  # fmt: skip
    node.use = replace(
        use_pictures.EVERYTHING,
        taken_at_s=use_pictures.EVERYTHING.taken_at_s + 10,
        containers=(replace(one, devices=(device,)),),
    )
    page.wait('document.body.innerText.includes("9 GiB of 8 GiB")')
    rows = page.tell(PARTS)["GPU 0 NVIDIA A40"]["rows"]
    assert rows == [
        ["team/infer-0/main", "9 GiB of 8 GiB", "20 % of 30 % +13 %", "10 %", "7 s ago", "0", "hook",
         "over its limit on GPU 0 by 1 GiB; it gets no more memory until it has freed that"],
    ]  # fmt: skip
    assert page.tell('document.querySelector("tbody tr") === window.row'), "nobody loses the place"
    assert page.tell('document.querySelectorAll(".nobody:not([hidden])").length') == 1
    node.use = replace(node.use, gpus=node.use.gpus[:1], containers=(replace(other, devices=()),))
    node.inventory = GpuInventory.of(SICK.gpus[:1])
    page.wait('document.querySelectorAll("main .gpu").length === 1')
    assert page.complaints() == []
    page.close()


def test_who_has_not_begun(browser: Browser, node: Node) -> None:
    one = use_pictures.EVERYTHING.containers[0]
    assert one.devices[0].reported is not None
    device = replace(one.devices[0], reported=replace(one.devices[0].reported, launches=0))
    node.use = replace(
        use_pictures.EVERYTHING,
        containers=(replace(one, tier=Tier.NONE, state=None, devices=(device,)),),
    )
    page = loaded(browser, node)
    [row] = page.tell(PARTS)["GPU 0 NVIDIA A40"]["rows"]
    assert row[4:] == ["never", "0", "nobody yet"]
    page.close()


@pytest.mark.parametrize(
    ("hook_version", "told"),
    [
        pytest.param("0.3.0", ["nobody", 1], id="switched off"),
        pytest.param("", ["-", 0], id="nothing was to be limited: mode nvidia, MIG"),
    ],
)
def test_who_keeps_no_limits(
    browser: Browser, node: Node, hook_version: str, told: list[object]
) -> None:
    one = use_pictures.EVERYTHING.containers[0]
    judged = ContainerState(
        namespace=one.namespace, pod=one.pod, container=one.container, state=State.OFF,
        reason=Reason.OFF,
    )  # fmt: skip
    off = replace(one, tier=Tier.NONE, state=judged, hook_version=hook_version)
    node.use = replace(use_pictures.EVERYTHING, containers=(off,))
    page = loaded(browser, node)
    [row, *_] = page.tell(PARTS)["GPU 0 NVIDIA A40"]["rows"]
    marked = page.tell('document.querySelector("tbody tr").querySelectorAll(".broken").length')
    assert [row[6], marked] == told
    page.close()


def test_names_are_only_text(browser: Browser, node: Node) -> None:
    one = use_pictures.EVERYTHING.containers[0]
    gpu = replace(use_pictures.EVERYTHING.gpus[0], name=HOSTILE)
    node.name = HOSTILE
    node.use = replace(
        use_pictures.EVERYTHING,
        gpus=(gpu,),
        gpus_problem=HOSTILE,
        containers=(replace(one, pod=HOSTILE, container=HOSTILE, region_problem=HOSTILE),),
    )
    page = loaded(browser, node)
    assert page.tell("document.body.innerText").count(HOSTILE) >= 6
    assert page.tell('document.querySelectorAll("img, main script, header script").length') == 0
    assert page.tell("window.owned === undefined")
    assert page.complaints() == []
    page.close()


def test_the_policy_holds_if_a_name_ever_became_markup(browser: Browser, node: Node) -> None:
    page = loaded(browser, node)
    told = page.tell(
        "new Promise((done) => { addEventListener('securitypolicyviolation', (e) => "
        "done(e.violatedDirective)); document.body.insertAdjacentHTML('beforeend', "
        '\'<img src="data:,x" onerror="window.owned=1">\'); })'
    )
    assert told.startswith("script-src")
    assert page.tell("window.owned === undefined")
    assert page.tell("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'kept')") == "kept"
    assert any("connect-src" in text or "Refused to connect" in text for text in page.complaints())
    page.close()


def test_an_agent_that_does_not_answer(browser: Browser, node: Node) -> None:
    page = loaded(browser, node)
    alert = 'document.getElementById("silence").innerText'
    port = node.listener.port
    node.stop()
    page.wait(f'{alert}.startsWith("The agent does not answer. What is below is")')
    assert page.tell(PARTS)["GPU 0 NVIDIA A40"]["rows"], "the last figures stay"
    node.listener = TcpListener(f"127.0.0.1:{port}")
    node.start()
    page.wait(f'{alert} === ""')
    page.close()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(b'{"version": 2}', "speaks version 2 of /v1/use; load this page anew", id="another version"),
        pytest.param(b"<html>", "The agent does not answer (", id="no JSON"),
        pytest.param(b'{"version": 1}', "The agent does not answer", id="another shape"),
    ],
)  # fmt: skip
def test_answers_that_are_of_no_use(browser: Browser, node: Node, body: bytes, told: str) -> None:
    page = loaded(browser, node)
    node.body = body
    page.wait(f'document.getElementById("silence").innerText.includes({json.dumps(told)})')
    node.body = None
    page.wait('document.getElementById("silence").innerText === ""')
    page.close()


def test_figures_are_written_as_in_a_terminal(browser: Browser, node: Node) -> None:
    page = loaded(browser, node)
    sizes = [0, 1, 1023, 1024, 1536, 10_000, GIB - 1, GIB, 10 * GIB - 1, 45 * GIB, 1 << 62]
    spans = [0, 0.9, 59, 60, 3599, 3600, 86_399, 86_400, 1e7]
    shares = [0, 0.001, 0.0099, 0.01, 0.125, 0.5, 0.999, 1, 2.5]
    assert page.tell(f"{sizes}.map(size)") == [size_text(one) for one in sizes]
    assert page.tell(f"{spans}.map(span)") == [span_text(one) for one in spans]
    assert page.tell(f"{shares}.map(share)") == [share_text(one) for one in shares]
    page.close()


def test_a_crowd(browser: Browser, node: Node) -> None:
    """8 GPUs with 100 containers each are shown, and drawn anew while the page stays usable."""
    node.use, node.inventory = use_pictures.crowd(8, 100, 4), GpuInventory()
    page = loaded(browser, node)
    assert page.tell('document.querySelectorAll("tbody tr").length') == 800
    asked = len(page.requested())
    deadline_s = time.monotonic() + 60
    while len(page.requested()) < asked + 2 and time.monotonic() < deadline_s:
        page.tell("1")
    assert len(page.requested()) >= asked + 2
    assert page.complaints() == []
    page.close()
