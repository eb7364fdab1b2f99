"""A headless Chromium, driven over pipes by the Chrome DevTools Protocol; standard library only.

Give the path of one in VGPU_TEST_CHROMIUM, or have `chromium` installed (Debian: `apt-get install
chromium`); without, the tests that need it are skipped.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "VGPU_TEST_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
MISSING = f"there is no Chromium: install Debian's `chromium`, or name one in {VARIABLE}"
ANSWER_WITHIN_S = 30.0
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe"),
)
# The browser takes commands at descriptor 3 and answers at 4.
START = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"  # fmt: skip


def chromium() -> str:
    """Its path; empty: there is none."""
    given = os.environ.get(VARIABLE)
    return given or next(filter(None, map(shutil.which, NAMES)), "")


class Browser:
    """The process and its pipes."""

    def __init__(self, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", START, str(commands), str(answers), chromium()),
                *QUIET,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self.pages: dict[str, Page] = {}

    def call(self, method: str, session: str = "", **parameters: object) -> Any:
        """The result of a command; events that come before it are handed to their pages."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + ANSWER_WITHIN_S, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._hand_over(answer)

    def _next(self, deadline_s: float, method: str) -> Any:
        while b"\0" not in self._buffer:
            wait_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self._answers], [], [], wait_s)[0]:
                raise AssertionError(f"the browser does not answer {method}")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise AssertionError(f"the browser has ended ({self.process.poll()})")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _hand_over(self, event: Any) -> None:
        page = self.pages.get(event.get("sessionId", ""))
        if page is not None:
            page.events.append(event)

    def open(self, *, width: int = 1200, height: int = 900, scheme: str = "light") -> "Page":
        """A new, empty page of that size, for somebody who likes that colour scheme."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        page = self.pages[attached["sessionId"]] = Page(self, attached["sessionId"], target)
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.call("Emulation.setEmulatedMedia", features=features)
        return page

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._commands)
        os.close(self._answers)


@dataclass
class Page:
    """One page, with all that it did."""

    browser: Browser
    session: str
    target: str
    events: list[Any] = field(default_factory=list)

    def call(self, method: str, **parameters: object) -> Any:
        """A command about this page."""
        return self.browser.call(method, self.session, **parameters)

    def go(self, url: str) -> None:
        """Load an address."""
        self.call("Page.navigate", url=url)

    def tell(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in told:
            raise AssertionError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait(self, expression: str, *, within_s: float = 60.0) -> Any:
        """The first truthy value of an expression."""
        deadline_s = time.monotonic() + within_s
        while not (value := self.tell(expression)):
            if time.monotonic() > deadline_s:
                raise AssertionError(f"did not happen: {expression}; {self.tell('document.body.innerText')}")  # fmt: skip
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> bytes:
        """The whole page as a PNG, also written to a file."""
        told = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        image = base64.b64decode(told["data"])
        path.write_bytes(image)
        return image

    def complaints(self) -> list[str]:
        """Errors in the console, exceptions nobody caught, and what the policy forbade."""
        self.tell("1")  # what is on its way has arrived with this
        of: dict[str, Callable[[Any], str]] = {
            "Runtime.exceptionThrown": lambda told: json.dumps(told["exceptionDetails"]),
            "Log.entryAdded": lambda told: told["entry"]["text"],
            "Runtime.consoleAPICalled": lambda told: json.dumps(told["args"]),
        }
        return [of[e["method"]](e["params"]) for e in self.events if e["method"] in of]

    def requested(self) -> list[str]:
        """Every address that was asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def roles(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader meets."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def close(self) -> None:
        """Done with it."""
        self.browser.pages.pop(self.session, None)
        self.browser.call("Target.closeTarget", targetId=self.target)
