"""What is answered at which path? Tables that the wiring puts together, one for each way in."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from agent import logs
from agent.adapters.http_messages import JSON, Answer, Head, plain

log = logs.get(__name__)

HEALTHZ, READYZ, METRICS = "/healthz", "/readyz", "/metrics"
READING = ("GET", "HEAD")


class Later(Protocol):
    """A change that was asked for: its answer comes when it is done. No method of it blocks."""

    @property
    def within_s(self) -> float:
        """How long whoever asked is to wait for it at most."""

    def given(self) -> tuple[int, bytes] | None:
        """HTTP status and JSON; None: there is no answer yet."""

    def give_up(self) -> tuple[int, bytes]:
        """Wait no longer: what was not begun is not done any more. Gives the answer that is left.

        Also for those who cannot be answered, because they are gone.
        """


Wake = Callable[[], None]  # called by any thread when there is an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path. What it calls must not block: one thread answers everybody.

    `get` is given the Accept header, `post` the body, who sent it, as far as that is known, and
    what to call when there is an answer.
    """

    get: Callable[[str], Answer] | None = None
    post: Callable[[bytes, str, Wake], Later] | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that are answered."""
        return (READING if self.get else ()) + (("POST",) if self.post else ())


Routes = Mapping[str, Route]


def probes(stuck: Callable[[], list[str]], missing: Callable[[], list[str]]) -> dict[str, Route]:
    """/healthz and /readyz.

    `stuck` names the services that are stuck (healthy when none); `missing` says, one line each,
    what is missing for readiness.
    """
    return {
        HEALTHZ: Route(get=lambda _: _verdict("stuck: ", stuck())),
        READYZ: Route(get=lambda _: _verdict("", missing())),
    }


def scraped(render: Callable[[str], tuple[bytes, str]]) -> Route:
    """What `render` makes for an Accept header: body and content type."""

    def get(accept: str) -> Answer:
        body, content_type = render(accept)
        return Answer(HTTPStatus.OK, body, content_type)

    return Route(get=get)


def shown(render: Callable[[], bytes]) -> Route:
    """A JSON document."""
    return Route(get=lambda _: Answer(HTTPStatus.OK, render(), JSON))


def given(later: Later) -> Answer | None:
    """The answer to a change that was asked for; None: not yet."""
    found = later.given()
    return None if found is None else _document(*found)


def given_up(later: Later) -> Answer:
    """The answer to whoever is not to wait any longer for a change."""
    return _document(*later.give_up())


def objection(routes: Routes, head: Head) -> Answer | None:
    """Why a request is not answered as it asks; known before its body is read."""
    route = routes.get(head.path)
    anywhere = dict.fromkeys(method for other in routes.values() for method in other.methods)
    methods = route.methods if route else tuple(anywhere)
    if head.method not in methods:
        return plain(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"only {' and '.join(methods)}\n",
            ("Allow", ", ".join(methods)),
        )
    if route is None:
        return plain(HTTPStatus.NOT_FOUND, "there are only:\n" + "\n".join(routes) + "\n")
    return None


def answer(
    routes: Routes, head: Head, body: bytes, asked_by: str = "", wake: Wake = lambda: None
) -> Answer | Later:
    """The answer to a request to which there is no objection."""
    route = routes[head.path]
    try:
        if head.method == "POST" and route.post:
            return route.post(body, asked_by, wake)
        if route.get:
            return route.get(head.accept)
    except Exception as error:  # noqa: BLE001 - a broken collector must not end the probes
        log.failing("request failed", about=head.path, error=repr(error))
        log.debug("request failed", trace=traceback.format_exc())
        return plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}\n")
    return plain(HTTPStatus.METHOD_NOT_ALLOWED, "not to be had in this way\n")


def _document(status: int, document: bytes) -> Answer:
    return Answer(HTTPStatus(status), document, JSON)


def _verdict(prefix: str, objections: list[str]) -> Answer:
    if not objections:
        return plain(HTTPStatus.OK, "ok\n")
    text = "".join(f"{prefix}{objection}\n" for objection in objections)
    return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
