"""A tiny HTTP client for the Kubernetes API, for the stand-ins and the demo; standard library only.

Works against the stand-in API server and against a real one. NOT for the agent: no keep-alive, no
retries, no watches, no reload of credentials.
"""

import http.client
import json
import ssl
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

Object = dict[str, Any]


class ApiFailed(Exception):
    """An answer other than 2xx; `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def path(resource: str, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
    """Build a path of core v1, such as /api/v1/namespaces/default/pods/p/binding."""
    parts = ["", "api", "v1"]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [resource, *(quote(part, safe="") for part in (name, subresource) if part)]
    return "/".join(parts)


class ApiClient:
    """One request at a time and per connection; thread-safe because nothing is shared.

    Args:
        base_url: such as http://127.0.0.1:8080, without a path.
        token: bearer token; empty sends none.
        tls: context for https; None trusts the system's authorities.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port
        self._https = parts.scheme == "https"
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    def ask(
        self,
        method: str,
        where: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> Object:
        """Send one request and give the decoded answer. Raises ApiFailed, OSError."""
        connection = self._connection()
        headers = self._headers | ({"Content-Type": content_type} if body is not None else {})
        payload = None if body is None else json.dumps(body).encode()
        try:
            connection.request(
                method, f"{where}?{urlencode(query)}" if query else where, payload, headers
            )
            answer = connection.getresponse()
            content: Object = json.loads(answer.read() or b"{}")
        finally:
            connection.close()
        if answer.status >= 300:  # noqa: PLR2004 - anything but success
            raise ApiFailed(answer.status, str(content.get("message", answer.reason)))
        return content

    def _connection(self) -> http.client.HTTPConnection:
        if self._https:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def get(self, resource: str, name: str, *, namespace: str = "") -> Object:
        """GET one object."""
        return self.ask("GET", path(resource, name, namespace=namespace))

    def list(self, resource: str, *, namespace: str = "", **query: str) -> list[Object]:
        """LIST; give the items."""
        answer = self.ask("GET", path(resource, namespace=namespace), query=query)
        items: list[Object] = answer.get("items") or []
        return items

    def annotate(
        self,
        resource: str,
        name: str,
        annotations: dict[str, str | None],
        *,
        namespace: str = "",
        content_type: str = MERGE_PATCH,
        **metadata: Any,
    ) -> Object:
        """PATCH annotations (None removes) and other metadata, such as `labels`."""
        return self.ask(
            "PATCH",
            path(resource, name, namespace=namespace),
            {"metadata": {"annotations": annotations, **metadata}},
            content_type=content_type,
        )
