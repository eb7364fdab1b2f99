"""What is asked of the API server, and what its answers mean. No I/O."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.errors import (
    ClusterConflict,
    ClusterDenied,
    ClusterError,
    ClusterForbids,
    ClusterGone,
    ClusterUnavailable,
)

# Of one answer, and of one event of a watch. etcd takes objects of 1.5 MiB, each byte of which may
# become six in JSON, as \u003c. To read it takes several times as much memory as it is long.
MAX_ANSWER_BYTES = 12 * 1024 * 1024
LONGEST_RETRY_AFTER_S = 300.0
SHOWN_CHARS = 500
SUCCESS = range(200, 300)
# Says the admission of any API server; source: its plugin NamespaceLifecycle.
ENDING_NAMESPACE = "because it is being terminated"
# And so do admission webhooks and policies, with 400, 403 or 422, or as they like.
DENIALS = ("denied the request", "denied request")

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. `verb` and `resource` as in RBAC; `about` completes "cannot <verb> ..."."""

    verb: str
    resource: str
    method: str
    path: str
    about: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | Sequence[Any] | None = None
    content_type: str = JSON
    repeatable: bool = True  # may be sent again when nobody knows whether it was carried out


class Unauthorized(ClusterDenied):
    """401: the credentials are not (or no longer) known."""


class Untrusted(ClusterUnavailable):
    """The server's certificate is not signed by the authority we know."""


class OutcomeUnknown(ClusterUnavailable):
    """The request may have been carried out: its answer was lost, or says so."""


class ConnectionBroken(OutcomeUnknown):
    """The connection ended before the answer did; a kept-alive one may have been closed before."""


class AnswerTooLong(ClusterError):
    """It would come again as long as that, so it is not asked for again."""


class ConflictAfterRetry(ClusterConflict):
    """A conflict, perhaps with ourselves: an earlier try of the same request had no answer."""


def error_of(request: Request, code: int, headers: Mapping[str, str], body: bytes) -> ClusterError:
    """Translate an answer other than 2xx."""
    said = _message(body)
    what = f"the API server answered {code} to {request.verb} {request.about}: {said}"
    if code == 401:  # noqa: PLR2004 - HTTP statuses, here and below
        return Unauthorized(
            f"{what}; its token or certificate may have expired: check the agent's credentials",
            code=code,
        )
    by_policy = _by_policy(said)
    if code == 403 or (code in (400, 422) and by_policy):  # noqa: PLR2004
        denied = ClusterForbids if by_policy else ClusterDenied
        return denied(f"{what}; {_remedy(request, said)}", code=code)
    if code in (404, 410):
        return ClusterGone(f"{what}; it was deleted or is too old", code=code)
    # 422 is a failed `test` of a JSON patch, and the uid of another object of the same name; other
    # patches get it when what they say is invalid.
    tested = request.content_type == JSON_PATCH or "metadata.uid" in said
    if code == 409 or (code == 422 and tested):  # noqa: PLR2004
        return ClusterConflict(f"{what}; somebody else changed it meanwhile", code=code)
    if code == 429 or code >= 500:  # noqa: PLR2004
        unknown = code >= 500 and code != 503  # noqa: PLR2004
        kind = OutcomeUnknown if unknown else ClusterUnavailable
        return kind(f"{what}; it is tried again", code=code, retry_after_s=retry_after_s(headers))
    return ClusterError(
        f"{what}; this is not expected of this request, please report it", code=code
    )


def _by_policy(said: str) -> bool:
    return any(denial in said for denial in DENIALS)


def _remedy(request: Request, said: str) -> str:
    """What to do where something is not allowed: not each such answer is about rights."""
    if _by_policy(said):
        return "have whoever looks after that policy except the agent's account"
    if ENDING_NAMESPACE in said:
        return "nothing is to be done: what is in that namespace ends with it"
    return f"allow `{request.verb}` on `{request.resource}` in the agent's ClusterRole"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of the Retry-After header, at most LONGEST_RETRY_AFTER_S; dates are ignored."""
    text = str(headers.get("Retry-After", "")).strip()
    if not text.isascii() or not text.replace(".", "", 1).isdigit():
        return None
    return min(LONGEST_RETRY_AFTER_S, float(text))


def _message(body: bytes) -> str:
    """The sentence of a Status object, or the beginning of whatever else came."""
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = None
    if isinstance(status, dict) and isinstance(status.get("message"), str):
        return str(status["message"])[:SHOWN_CHARS]
    return body[:SHOWN_CHARS].decode(errors="replace") or "(nothing)"


def decoded(body: bytes, request: Request) -> dict[str, Any]:
    """Decode an answer, which must be a JSON object. Raises ClusterUnavailable."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _no_api_server(request, str(error)) from error
    if not isinstance(answer, dict):
        raise _no_api_server(request, f"a {type(answer).__name__}")
    return answer


def _no_api_server(request: Request, found: str) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"the answer to {request.verb} {request.about} is not a JSON object ({found}); is there "
        "something else than an API server at this address?"
    )


def failure(request: Request, error: Exception) -> ClusterUnavailable:
    """Translate what the transport raised while it sent or received."""
    from urllib3 import exceptions

    text = f"{type(error).__name__}: {error}"
    kind, why = ClusterUnavailable, "the request failed"
    if isinstance(error, exceptions.ConnectTimeoutError | exceptions.NewConnectionError):
        why = "the API server cannot be reached"
    elif isinstance(error, exceptions.TimeoutError):
        kind, why = OutcomeUnknown, "the API server did not answer in time"
    elif "CERTIFICATE" in text:  # the package wraps TLS errors into a text
        whose = "proxy" if "ProxyError" in text else "API server"
        kind, why = Untrusted, f"the {whose}'s certificate is not trusted"
    elif (
        isinstance(error, exceptions.ProtocolError | OSError)
        or "SSL" in text
        # By a proxy urllib3 says of a connection that ended later, too, that none was made.
        or isinstance(getattr(error, "original_error", None), ConnectionError)
    ):
        kind, why = ConnectionBroken, "the connection to the API server ended"
    return kind(f"cannot {request.verb} {request.about}: {why} ({text})")
