"""The web page: one file, served as it is, that may do nothing but ask this agent.

Its policy names the page's own script and style by their digests, so that nothing else runs in it,
whatever a name in it may try.
"""

import base64
import hashlib
import re
from http import HTTPStatus
from pathlib import Path

from agent import logs
from agent.adapters.http_messages import Answer
from agent.adapters.routes import Route

log = logs.get(__name__)

PAGE = "/"
FILE = "index.html"
HTML = "text/html; charset=utf-8"
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def web_page(directory: Path) -> dict[str, Route]:
    """The route of the page in a directory; none, and a line in the log, when it is not there."""
    try:
        content = (directory / FILE).read_bytes()
    except OSError as error:
        log.warning("web page missing", path=directory / FILE, error=error.strerror)
        return {}
    headers = (
        ("Content-Security-Policy", policy(content.decode())),
        ("Referrer-Policy", "no-referrer"),
    )
    answer = Answer(HTTPStatus.OK, content, HTML, headers)
    return {PAGE: Route(get=lambda _: answer)}


def policy(page: str) -> str:
    """What the page may do, as a Content-Security-Policy. Source: W3C, CSP Level 3."""
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        digests[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(digests['script']) or repr('none')}",
            f"style-src {' '.join(digests['style']) or repr('none')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
