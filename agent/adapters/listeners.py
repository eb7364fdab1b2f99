"""Where can the agent be asked? What a way in has to offer, and the one over TCP."""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent.errors import AgentError, ConfigError

BACKLOG = 64
MAX_PORT = 65_535


class EndpointUnavailable(AgentError):
    """It cannot be listened there now. Worth trying again."""


class Listener(Protocol):
    """A way in."""

    @property
    def where(self) -> Mapping[str, object]:
        """For the log: which one it is."""

    def open(self) -> socket.socket:
        """A listening socket that does not block. Raises EndpointUnavailable."""

    def lost(self) -> bool:
        """Whether nobody can find the open socket any more, so that it must be made anew."""

    def refusal(self, peer: socket.socket) -> str:
        """Why whoever connected is not served, in a sentence; empty: they are."""

    def peer(self, peer: socket.socket) -> str:
        """Who connected, in words for a log; empty: nobody knows."""

    def closed(self) -> None:
        """The socket was closed: take away what is left of it."""


@dataclass(slots=True)
class TcpListener:
    """An address on the network, see `parse_address`. Raises ConfigError for a bad one."""

    address: str
    port: int = 0  # bound; 0: not listening
    _host: str = field(init=False)
    _port: int = field(init=False)

    def __post_init__(self) -> None:
        self._host, self._port = parse_address(self.address)

    @property
    def where(self) -> Mapping[str, object]:
        return {"host": self._host or "*", "port": self.port or self._port}

    def open(self) -> socket.socket:
        server = listen(self._host, self._port)
        self.port = server.getsockname()[1]
        return server

    def lost(self) -> bool:
        return False

    def refusal(self, peer: socket.socket) -> str:
        del peer
        return ""

    def peer(self, peer: socket.socket) -> str:
        del peer
        return ""

    def closed(self) -> None:
        self.port = 0


def parse_address(text: str) -> tuple[str, int]:
    """Split `[host]:port`; an empty host means every address, an IPv6 host stands in brackets.

    Raises ConfigError.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        fits = _is_ip(host, version=6)
    else:
        fits = host in ("", "localhost") or _is_ip(host, version=4)
    if not (colon and fits and port.isascii() and port.isdigit() and len(port) <= 5):  # noqa: PLR2004
        port = "-1"
    if not 0 <= int(port) <= MAX_PORT:
        raise ConfigError(
            "it must be an address such as :9394, 127.0.0.1:9394 or [::1]:9394 (port 0 to "
            f"{MAX_PORT}, host an IP address, localhost or nothing); write it so"
        )
    return host, int(port)


def _is_ip(text: str, *, version: int) -> bool:
    try:
        return ipaddress.ip_address(text).version == version
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that does not block. Raises EndpointUnavailable."""
    if host == "":
        families = [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]
    elif host == "localhost":
        families = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    else:
        families = [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    reason = ""
    for family, address in families:
        try:
            return _bound(family, address, port, dual=host == "")
        except OSError as error:
            reason = error.strerror or str(error)
    raise EndpointUnavailable(
        f"cannot listen at {host}:{port}: {reason}; if another program has the port (HAMi's "
        "vGPUmonitor uses 9394, too), stop it or set --metrics-bind-address"
    )


def _bound(family: int, address: str, port: int, *, dual: bool) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        server.bind((address, port))
        server.listen(BACKLOG)
        server.setblocking(False)
    except BaseException:
        server.close()
        raise
    return server
