"""HTTP/1.1 face of the stand-in API server: routes, answers, watches.

Imitated: keep-alive, chunked watches, `Status` bodies, the content types of patches, Retry-After,
bookmarks, ADDED and DELETED for objects that enter or leave a field selector. NOT imitated: gzip,
HTTP/2, protobuf, `?pretty`, disruption budgets, discovery beyond /version, API priority and
fairness, audit, and that all pages of a list show one moment.
"""

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from agent.sim import api_patches
from agent.sim.api_faults import ApiRequest, Fault
from agent.sim.api_selectors import BadSelector
from agent.sim.api_store import KINDS, ApiError, Object
from agent.sim.api_watch import TRUE, Watch, WatchCut, selector

if TYPE_CHECKING:
    from agent.sim.apiserver import ApiServer

MAX_BODY_BYTES = 3 * 1024 * 1024
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": api_patches.apply_merge,
    "application/strategic-merge-patch+json": api_patches.apply_strategic,
    "application/json-patch+json": api_patches.apply_json_patch,
}
REVIEWS = "selfsubjectaccessreviews"  # of authorization.k8s.io/v1
GREETINGS = {
    "/healthz": b"ok",
    "/livez": b"ok",
    "/readyz": b"ok",
    "/version": b'{"major":"1","minor":"36","gitVersion":"v1.36.0-stand-in"}',
}


class ConnectionDropped(Exception):
    """A planned fault: end the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]

    @property
    def full_resource(self) -> str:
        """Resource as RBAC writes it, such as `pods/binding`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def route(method: str, url: str) -> Target | None:
    """Find out what a request is about; None for a path outside the imitated API."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = [unquote(part) for part in parts.path.strip("/").split("/")]
    if path == ["apis", "authorization.k8s.io", "v1", REVIEWS] and method == "POST":
        return Target("create", REVIEWS, "", "", "", query)
    if path[:2] != ["api", "v1"]:
        return None
    path, namespace = path[2:], ""
    if len(path) > 2 and path[0] == "namespaces":  # noqa: PLR2004 - namespaces/<ns>/<resource>
        namespace, path = path[1], path[2:]
    resource, name, subresource, *rest = [*path, "", "", ""]
    if resource not in KINDS or any(rest):
        return None
    verb = VERBS.get(method, "get" if name else "list")
    if verb == "list" and query.get("watch") in TRUE:
        verb = "watch"
    return Target(verb, resource, namespace, name, subresource, query)


class Handler(BaseHTTPRequestHandler):
    """One connection, one thread; requests one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: ClassVar["ApiServer"]
    stopping: ClassVar[threading.Event]  # of this run of the server, not of the next

    def setup(self) -> None:
        super().setup()
        self.api.connections.add(self.connection)

    def finish(self) -> None:
        self.api.connections.discard(self.connection)
        with contextlib.suppress(OSError):  # the client, or a planned fault, was faster
            super().finish()

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ConnectionDropped, WatchCut):
            self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        """Stay silent: requests are recorded, not printed."""

    def _any(self) -> None:
        body = self._body()
        target = route(self.command, self.path)
        if target is None:
            self._greet()
            return
        if self.stopping.is_set():
            raise ConnectionDropped
        fault = self.api.faults.strike(target.verb, target.full_resource)
        try:
            self._suffer(fault)
            self._authenticate()
            self._authorize(target)
            if target.verb == "watch":
                self._watch(target, expired=fault is not None and fault.action == "expire")
                return
            content, code = self._serve(target, body)
        except ConnectionDropped:
            self._record(target, 0, body, 0)
            raise
        except ApiError as error:
            content, code = error.status(), error.code
        except (api_patches.PatchFailed, BadSelector) as error:
            code = getattr(error, "code", 400)
            content = ApiError(code, HTTPStatus(code).phrase.replace(" ", ""), str(error)).status()
        if fault is not None and fault.action == "lose":
            self._record(target, 0, body, 0)
            raise ConnectionDropped
        payload = json.dumps(content, separators=(",", ":")).encode()
        self._record(target, code, body, len(payload))  # before the client can ask for the record
        after_s = fault.retry_after_s if fault is not None else None
        self._write_out(code, payload, after_s)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server's names

    # --- one request ----------------------------------------------------------------------------

    def _body(self) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        if size > MAX_BODY_BYTES:
            raise ConnectionDropped
        return self.rfile.read(size) if size else b""

    def _suffer(self, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.action == "hang":
            deadline_s = time.monotonic() + fault.seconds
            while time.monotonic() < deadline_s and not self.stopping.is_set():
                if self.api.faults.lifted.wait(0.05):
                    break
        if fault.action == "drop" or self.stopping.is_set():
            raise ConnectionDropped
        if fault.action == "answer":
            reason = fault.reason or HTTPStatus(fault.code).phrase.replace(" ", "")
            raise ApiError(fault.code, reason, f"planned fault: {reason}")

    def _authenticate(self) -> None:
        tokens = self.api.tokens
        if tokens is None:
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token in tokens:
            return
        get_certificate = getattr(self.connection, "getpeercert", None)
        if get_certificate is not None and get_certificate():
            return  # the TLS layer has verified it
        raise ApiError(401, "Unauthorized", "Unauthorized")

    def _authorize(self, target: Target) -> None:
        """As RBAC would; whether one may do something everybody may ask."""
        client, resource = self.headers.get("User-Agent", ""), target.full_resource
        if resource == REVIEWS or self.api.may(client, target.verb, resource):
            return
        user = client.partition("/")[0]
        raise ApiError(
            403,
            "Forbidden",
            f'{resource} "{target.name}" is forbidden: User "{user}" cannot {target.verb} resource '
            f'"{resource}" in API group ""',
        )

    def _serve(self, target: Target, body: bytes) -> tuple[Object, int]:
        match target.verb, target.subresource:
            case "create", "" if not target.name:
                return self._create(target, _object(body)), 201
            case "get", "" | "status":
                store = self.api.objects
                stale = self._stale_will_do(target)
                return store.get(target.resource, target.name, target.namespace, stale=stale), 200
            case "list", "":
                return self._list(target), 200
            case "create", "binding" | "eviction" if target.resource == "pods":
                if target.subresource == "binding":
                    self.api.objects.bind(target.name, target.namespace, _object(body))
                else:
                    self._delete(target, _object(body).get("deleteOptions") or {})
                return {"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201
            case "update" | "patch", "" | "status":
                return self._write(target, body), 200
            case "delete", "" if target.name:
                return self._delete(target, _object(body) if body else {}), 200
        raise ApiError(405, "MethodNotAllowed", f"cannot {target.verb} {target.full_resource}")

    def _create(self, target: Target, content: Object) -> Object:
        if target.resource == REVIEWS:
            return self._review(content)
        return self.api.objects.create(target.resource, content, target.namespace)

    def _review(self, review: Object) -> Object:
        """Whether the client may do what it asks about: all of its role but what is `denied`."""
        asked = (review.get("spec") or {}).get("resourceAttributes") or {}
        verb, resource = str(asked.get("verb")), str(asked.get("resource"))
        if asked.get("subresource"):
            resource = f"{resource}/{asked['subresource']}"
        client = self.headers.get("User-Agent", "")
        allowed = (verb, resource) not in self.api.denied and self.api.may(client, verb, resource)
        return {**review, "status": {"allowed": allowed}}

    def _list(self, target: Target) -> Object:
        wanted = selector(target.query, target.resource)
        items, version = self.api.objects.list(
            target.resource, target.namespace, stale=self._stale_will_do(target)
        )
        kind, _ = KINDS[target.resource]
        page, metadata = _page([item for item in items if wanted(item)], str(version), target.query)
        return {
            "kind": f"{kind}List",
            "apiVersion": "v1",
            "metadata": metadata,
            "items": page,
        }

    def _stale_will_do(self, target: Target) -> bool:
        """Whether the client said, by a resourceVersion, that a cached answer is good enough."""
        asked = target.query.get("resourceVersion", "")
        if asked and not asked.isdecimal():
            raise ApiError(400, "BadRequest", f"invalid resource version {asked!r}")
        if int(asked or "0") > self.api.objects.version:
            raise ApiError(504, "Timeout", f"Too large resource version: {asked}")
        return asked != "" and int(asked) <= self.api.objects.stale_version

    def _write(self, target: Target, body: bytes) -> Object:
        content = _json(body)
        apply = _replace if target.verb == "update" else self._patch_type()
        return self.api.objects.update(
            target.resource,
            target.name,
            target.namespace,
            lambda old: _as_object(apply(old, content)),
            subresource=target.subresource,
            patch=target.verb == "patch",
        )

    def _patch_type(self) -> Callable[[Any, Any], Any]:
        content_type = self.headers.get("Content-Type", "").partition(";")[0]
        if content_type not in PATCHES:
            raise ApiError(
                415, "UnsupportedMediaType", f"patch type {content_type!r} is not imitated"
            )
        return PATCHES[content_type]

    def _delete(self, target: Target, options: Object) -> Object:
        grace = options.get("gracePeriodSeconds", target.query.get("gracePeriodSeconds"))
        wanted_uid = (options.get("preconditions") or {}).get("uid")
        if wanted_uid:
            found = self.api.objects.get(target.resource, target.name, target.namespace)
            if found["metadata"]["uid"] != wanted_uid:
                raise ApiError(409, "Conflict", "the UID in the precondition does not match")
        return self.api.objects.delete(
            target.resource,
            target.name,
            target.namespace,
            grace_s=None if grace is None else int(grace),
        )

    # --- answers --------------------------------------------------------------------------------

    def _greet(self) -> None:
        content = GREETINGS.get(urlsplit(self.path).path)
        if content is None:
            error = ApiError(404, "NotFound", "the server could not find the requested resource")
            self._write_out(404, json.dumps(error.status()).encode())
        else:
            self._write_out(200, content)

    def _write_out(self, code: int, payload: bytes, retry_after_s: float | None = None) -> None:
        extra = "" if retry_after_s is None else f"Retry-After: {retry_after_s:g}\r\n"
        head = (
            f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: application/json\r\n"
            f"{extra}Content-Length: {len(payload)}\r\n\r\n"
        )
        self.wfile.write(head.encode() + payload)  # in one piece: no wait for a delayed ACK

    def _record(self, target: Target, code: int, body: bytes, sent_bytes: int) -> None:
        try:
            content = json.loads(body) if body else None
        except ValueError:
            content = body
        self.api.log.add(
            ApiRequest(
                verb=target.verb,
                resource=target.full_resource,
                namespace=target.namespace,
                name=target.name,
                query=target.query,
                content_type=self.headers.get("Content-Type", ""),
                user_agent=self.headers.get("User-Agent", ""),
                code=code,
                received_bytes=len(body),
                sent_bytes=sent_bytes,
                at_s=time.monotonic(),
                body=content,
            )
        )

    def _watch(self, target: Target, *, expired: bool) -> None:
        watch = Watch(
            self.api,
            resource=target.resource,
            namespace=target.namespace,
            query=target.query,
            stopping=self.stopping,
            send=self.wfile.write,
            client_left=self._client_left,
        )
        self._record(target, 200, b"", 0)
        with self.api.watching(target.resource):
            watch.serve(expired=expired)

    def _client_left(self) -> bool:
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        try:
            # Not MSG_PEEK through TLS: there, anything readable on a watch is the closing alert.
            return type(self.connection) is not socket.socket or not self.connection.recv(
                1, socket.MSG_PEEK
            )
        except OSError:
            return True


def _page(
    items: list[Object], version: str, query: Mapping[str, str]
) -> tuple[list[Object], dict[str, str]]:
    """The part of a list that was asked for, and the list's metadata; from memory all of it."""
    if query.get("resourceVersion") == "0":
        return items, {"resourceVersion": version}
    if goes_on := query.get("continue"):
        version, namespace, name = goes_on.split("/")
        items = [item for item in items if _place(item) > (namespace, name)]
    limit = int(query.get("limit") or 0) or len(items)
    metadata = {"resourceVersion": version}
    if len(items) > limit:
        items = items[:limit]
        metadata["continue"] = "/".join((version, *_place(items[-1])))
    return items, metadata


def _place(item: Object) -> tuple[str, str]:
    """By which a list is in order."""
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"the body is not JSON: {error}") from error


def _as_object(content: Any) -> Object:
    if not isinstance(content, dict):
        raise ApiError(400, "BadRequest", "the body is not an object")
    return content


def _object(body: bytes) -> Object:
    return _as_object(_json(body))


def _replace(_old: Any, new: Any) -> Any:
    return new
