"""What is answered at which path? Tables that the wiring puts together, one for each way in."""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from agent import logs
from agent.adapters.http_messages import JSON, Answer, Head, plain

log = logs.get(__name__)

HEALTHZ, READYZ, METRICS = "/healthz", "/readyz", "/metrics"
READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path. What it calls must not block: one thread answers everybody.

    `get` is given the Accept header, `post` the body and who sent it, as far as that is known.
    """

    get: Callable[[str], Answer] | None = None
    post: Callable[[bytes, str], Answer] | None = None

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


def changed(post: Callable[[bytes, str], tuple[int, bytes]]) -> Route:
    """A change that is asked for: `post` takes a body and who sent it, gives status and JSON."""

    def answer(body: bytes, asked_by: str) -> Answer:
        status, document = post(body, asked_by)
        return Answer(HTTPStatus(status), document, JSON)

    return Route(post=answer)


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


def answer(routes: Routes, head: Head, body: bytes, asked_by: str = "") -> Answer:
    """The answer to a request to which there is no objection."""
    route = routes[head.path]
    try:
        if head.method == "POST" and route.post:
            return route.post(body, asked_by)
        if route.get:
            return route.get(head.accept)
    except Exception as error:  # noqa: BLE001 - a broken collector must not end the probes
        log.failing("request failed", about=head.path, error=repr(error))
        log.debug("request failed", trace=traceback.format_exc())
        return plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}\n")
    return plain(HTTPStatus.METHOD_NOT_ALLOWED, "not to be had in this way\n")


def _verdict(prefix: str, objections: list[str]) -> Answer:
    if not objections:
        return plain(HTTPStatus.OK, "ok\n")
    text = "".join(f"{prefix}{objection}\n" for objection in objections)
    return plain(HTTPStatus.SERVICE_UNAVAILABLE, text)
