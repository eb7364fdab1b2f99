"""The proxy on the way to the API server, as kubectl takes it from the environment or a kubeconfig.

The official client hands what it finds to urllib3 as it is. Of HTTPS_PROXY=proxy:3128, which has no
scheme, that made a traceback; a user and password were never sent; and what is on this machine, as
the API server's address is on a node of k3s, was looked for behind the proxy.
"""

import base64
import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from agent.errors import ConfigError

SPOKEN = ("http", "https")
PORTS = {"http": "80", "https": "443"}


def settle(configuration: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Give a `kubernetes.client.Configuration` the proxy by which to go, or none.

    Raises ConfigError, which shows no password.
    """
    server = urlsplit(configuration.host)
    host = server.hostname or ""
    # The client's own note of it; without it, as with a version that keeps none, the environment's
    # rules hold for a kubeconfig's proxy, too.
    if getattr(configuration, "_proxy_from_env", True):
        variable = f"{server.scheme.upper()}_PROXY"
        text, named = _said(environ, variable), f"the variable {variable}"
        port = server.netloc.rpartition("]")[2].partition(":")[2] or PORTS.get(server.scheme, "")
        excepted = _said(environ, "NO_PROXY").lower().split(",")
        if _here(host) or any(_names(entry.strip(), host, port) for entry in excepted):
            text = ""
    else:
        text, named = configuration.proxy or "", "proxy-url in the kubeconfig"
    configuration.no_proxy = ""  # the client has other rules, and knows none of a kubeconfig's
    configuration.proxy = None
    if text:
        _set(configuration, text, named)


def _said(environ: Mapping[str, str], variable: str) -> str:
    return environ.get(variable) or environ.get(variable.lower()) or ""


def _names(entry: str, host: str, port: str) -> bool:
    """Whether an entry of NO_PROXY is of that server. Source: Go's httpproxy, as in kubectl."""
    if entry == "*":
        return True
    address = _address(host)
    with suppress(ValueError):
        network = ipaddress.ip_network(entry, strict=False)
        return address is not None and address in network
    name, colon, of_port = entry.rpartition(":")
    if not colon:
        name, of_port = entry, ""
    if not name or of_port not in ("", port):
        return False
    if address:
        return _address(name.removeprefix("[").removesuffix("]")) == address
    name = name[1:] if name.startswith("*.") else name
    return host == name or host.endswith(name if name.startswith(".") else f".{name}")


def _set(configuration: Any, text: str, named: str) -> None:
    try:
        proxy = urlsplit(text if "://" in text else f"http://{text}")
        usable = proxy.hostname and proxy.port != 0
    except ValueError:  # a port that is no number, brackets that do not match
        usable = None
    if not usable:
        raise ConfigError(f"{named} is no address of a proxy; write it as http://proxy:3128")
    if proxy.scheme not in SPOKEN:
        raise ConfigError(
            f"{named} names a proxy of the kind {proxy.scheme}, and only http and https are "
            "spoken here; name one of these, or set NO_PROXY to the API server's address"
        )
    user, at, address = proxy.netloc.rpartition("@")
    configuration.proxy = f"{proxy.scheme}://{address}"
    if at:
        words = base64.b64encode(unquote(user).encode()).decode()
        configuration.proxy_headers = {"Proxy-Authorization": f"Basic {words}"}


def _here(host: str) -> bool:
    """Whether it is this machine, which is behind no proxy of the environment."""
    address = _address(host)
    return address.is_loopback if address else host == "localhost"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(text)
    return None
