"""One open watch of the stand-in API server: which changes it shows, when, and how it ends."""

import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agent.sim.api_selectors import by_fields, by_labels
from agent.sim.api_store import KINDS, ApiError, Change, Object

if TYPE_CHECKING:
    from agent.sim.apiserver import ApiServer

TIMEOUT_S = 1800.0  # a real API server draws 30 to 60 minutes
TICK_S = 0.5  # how soon a watch notices that its client has left

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
TRUE = ("1", "t", "T", "true", "TRUE", "True")


class WatchCut(Exception):
    """The connection of the watch is to be dropped, or is already gone."""


class Watch:
    """Streams changes of one resource through one selector to one client.

    Args:
        api: the server; its settings are read at each step, so they can change meanwhile.
        stopping: set when the server stops.
        send: writes bytes to the client.
        client_left: whether the client has closed its side.
    """

    def __init__(
        self,
        api: "ApiServer",
        *,
        resource: str,
        namespace: str,
        query: dict[str, str],
        stopping: threading.Event,
        send: Callable[[bytes], Any],
        client_left: Callable[[], bool],
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._query = query
        self._wanted = selector(query, resource)
        self._stopping = stopping
        self._send = send
        self._client_left = client_left
        self._generation = api.watch_generation
        asked = query.get("resourceVersion", "")
        if asked and not asked.isdecimal():
            raise ApiError(400, "BadRequest", f"invalid resource version {asked!r}")
        self._version = int(asked or "0")

    def serve(self, *, expired: bool) -> None:
        """Send everything, to the final chunk. Raises WatchCut or OSError when it ends early."""
        self._send(HEAD)
        try:
            if self._version == 0:
                self._send_present()
            elif expired:
                self._api.objects.changes_since(-1)
            else:  # a real API server says "too old" inside a 200
                self._api.objects.changes_since(self._version)
            self._follow()
        except ApiError as error:
            self._emit({"type": "ERROR", "object": error.status()})
        self._send(b"0\r\n\r\n")

    def _send_present(self) -> None:
        items, self._version = self._api.objects.list(self._resource, self._namespace)
        for item in filter(self._wanted, items):
            self._emit({"type": "ADDED", "object": item})

    def _follow(self) -> None:
        now_s = time.monotonic()
        ends_s = now_s + float(self._query.get("timeoutSeconds") or TIMEOUT_S)
        bookmarks = self._query.get("allowWatchBookmarks") in TRUE
        bookmark_s = now_s + self._api.bookmark_every_s if bookmarks else ends_s
        while now_s < ends_s and not self._ended():
            if self._stopping.is_set() or self._client_left():
                raise WatchCut
            for change in self._next_changes(
                within_s=min(TICK_S, ends_s - now_s, bookmark_s - now_s)
            ):
                if not self._api.wait_until_visible(change.at_s, self._stopping):
                    raise WatchCut
                self._version = change.version
                self._show(change)
            now_s = time.monotonic()
            if bookmarks and now_s >= bookmark_s:
                bookmark_s = now_s + self._api.bookmark_every_s
                self._emit_bookmark()
        if bookmarks:
            self._emit_bookmark()

    def _ended(self) -> bool:
        return self._generation != self._api.watch_generation

    def _next_changes(self, within_s: float) -> list[Change]:
        store = self._api.objects
        with store.changed:
            store.changed.wait_for(
                lambda: store.version > self._version or self._stopping.is_set() or self._ended(),
                timeout=within_s,
            )
            changes = store.changes_since(self._version, live=True)
            if not changes:
                # a compaction is a version without a change; a version from the future stays one
                self._version = max(self._version, store.version)
            return changes

    def _show(self, change: Change) -> None:
        event = self._as_event(change) if change.resource == self._resource else None
        if event is not None:
            self._emit(event)
            if self._api.duplicate_events:
                self._emit(event)

    def _as_event(self, change: Change) -> Object | None:
        """Give what this watcher sees: objects enter and leave its selector; None for nothing."""
        was, is_now = self._fits(change.old), self._fits(change.new)
        if is_now:
            return {"type": "MODIFIED" if was else "ADDED", "object": change.new}
        last = change.new if change.new is not None else change.old
        if not was or last is None:
            return None
        metadata = last["metadata"] | {"resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": last | {"metadata": metadata}}

    def _fits(self, item: Object | None) -> bool:
        if item is None or self._namespace not in ("", item["metadata"].get("namespace", "")):
            return False
        return self._wanted(item)

    def _emit_bookmark(self) -> None:
        if self._version > self._api.objects.version:
            return  # of a version that does not exist yet a real API server says nothing at all
        metadata = {"resourceVersion": str(self._version), "creationTimestamp": None}
        kind, _ = KINDS[self._resource]
        shell = {"kind": kind, "apiVersion": "v1", "metadata": metadata}
        self._emit({"type": "BOOKMARK", "object": shell})

    def _emit(self, event: Object) -> None:
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        self._send(b"%x\r\n%s\r\n" % (len(line), line))
        self._api.log.sent(len(line))


def selector(query: dict[str, str], resource: str) -> Callable[[Object], bool]:
    """Compile the field and label selectors of a query."""
    fields = by_fields(query.get("fieldSelector", ""), resource)
    labels = by_labels(query.get("labelSelector", ""))
    return lambda item: fields(item) and labels(item)
