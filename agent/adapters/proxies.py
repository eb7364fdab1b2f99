"""The proxy on the way to the API server, as kubectl takes it from the environment or a kubeconfig.

The official client hands what it finds to urllib3 as it is. Of HTTPS_PROXY=proxy:3128, which has no
scheme, that made a traceback; a user and password were never sent; and what is on this machine, as
the API server's address is on a node of k3s, was looked for behind the proxy.
"""

import base64
import ipaddress
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from agent.errors import ConfigError

SPOKEN = ("http", "https")


def settle(configuration: Any, rest: ModuleType) -> None:
    """Give a `kubernetes.client.Configuration` the proxy by which to go, or none.

    Raises ConfigError, which shows no password.
    """
    from urllib.request import getproxies_environment  # brings ssl, which not every start needs

    server = urlsplit(configuration.host)
    # The client's own note of it; without it, as with a version that keeps none, the environment's
    # rules hold for a kubeconfig's proxy, too.
    if getattr(configuration, "_proxy_from_env", True):
        text = getproxies_environment().get(server.scheme, "")
        named = f"the variable {server.scheme.upper()}_PROXY"
        if _here(server.hostname or "") or _excepted(configuration, rest):
            text = ""
    else:
        text, named = configuration.proxy or "", "proxy-url in the kubeconfig"
        configuration.no_proxy = ""  # it is this cluster's, and no exception is meant for it
    configuration.proxy = None
    if text:
        _set(configuration, text, named)


def _excepted(configuration: Any, rest: ModuleType) -> bool:
    """Whether NO_PROXY names the API server. `*.example.com` is `.example.com` to kubectl alone."""
    entries = (entry.strip() for entry in (configuration.no_proxy or "").split(","))
    dotted = ",".join(f".{entry[2:]}" if entry.startswith("*.") else entry for entry in entries)
    return bool(rest.should_bypass_proxies(configuration.host, dotted))


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
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
