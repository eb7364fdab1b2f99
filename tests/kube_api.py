"""How do tests talk to an API server, whichever it is? JSON over http.client, and a kubeconfig.

Independent of the agent's own client on purpose: it is the witness of what the agent wrote.
"""

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import yaml

MERGE_PATCH = "application/merge-patch+json"
Json = dict[str, Any]


TIMEOUT_S = 60.0  # an API server on a busy disk answers late, and is not what is tested


class ApiFailure(Exception):
    """The API server refused; `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def kubeconfig_text(url: str, *, token: str = "", certificate: Path | None = None) -> str:
    """A kubeconfig with one cluster, one user and one context."""
    cluster: Json = {"server": url}
    if certificate is not None:
        cluster["certificate-authority"] = str(certificate)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    return json.dumps(config, indent=1)


@dataclass(slots=True)
class KubeApi:
    """One connection per request to one API server."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """Read the current context: certificate or token users, authority as file or data."""
        config = yaml.safe_load(path.read_text())
        (context,) = (c for c in config["contexts"] if c["name"] == config["current-context"])
        wanted = context["context"]
        (cluster,) = (c for c in config["clusters"] if c["name"] == wanted["cluster"])
        (user,) = (u for u in config["users"] if u["name"] == wanted["user"])
        server, login = cluster["cluster"], user.get("user") or {}
        tls = None
        if server["server"].startswith("https:"):
            tls = ssl.create_default_context()
            _load_authority(tls, server)
            _load_client_certificate(tls, login)
        headers = {"Authorization": f"Bearer {login['token']}"} if login.get("token") else {}
        return cls(server["server"].rstrip("/"), headers, tls)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Json:
        """Make one request; ApiFailure when it is refused, OSError when nobody answers."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        connection: http.client.HTTPConnection
        if self.tls is not None:
            connection = http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_S, context=self.tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        target = f"{parts.path}{quote(path)}" + (f"?{urlencode(query)}" if query else "")
        headers = {**self.headers, "Accept": "application/json", "Content-Type": content_type}
        try:
            payload = json.dumps(body).encode() if body is not None else None
            connection.request(method, target, body=payload, headers=headers)
            response = connection.getresponse()
            text = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        answer = _json_or_text(text)
        if response.status >= 400:
            raise ApiFailure(response.status, str(answer.get("message", answer)))
        return answer

    def get(self, path: str, **query: str) -> Json:
        """GET an object or a list."""
        return self.request("GET", path, query=query)

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """PATCH with a JSON merge patch."""
        return self.request("PATCH", path, body, content_type=MERGE_PATCH)

    def is_ready(self) -> bool:
        """Whether `/readyz` says so; False also when nobody answers."""
        try:
            self.get("/readyz")
        except (ApiFailure, OSError):
            return False
        return True


def _json_or_text(text: bytes) -> Json:
    try:
        answer = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"message": answer}


def _load_authority(tls: ssl.SSLContext, server: Mapping[str, Any]) -> None:
    if server.get("certificate-authority-data"):
        tls.load_verify_locations(
            cadata=base64.b64decode(server["certificate-authority-data"]).decode()
        )
    elif server.get("certificate-authority"):
        tls.load_verify_locations(cafile=server["certificate-authority"])
    elif server.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE


def _load_client_certificate(tls: ssl.SSLContext, login: Mapping[str, Any]) -> None:
    if login.get("client-certificate-data"):
        with tempfile.TemporaryDirectory() as folder:  # the ssl module reads files only
            certificate, key = Path(folder, "certificate"), Path(folder, "key")
            certificate.write_bytes(base64.b64decode(login["client-certificate-data"]))
            key.write_bytes(base64.b64decode(login["client-key-data"]))
            tls.load_cert_chain(certificate, key)
    elif login.get("client-certificate"):
        tls.load_cert_chain(login["client-certificate"], login.get("client-key"))
