"""The sockets below the official client's transport: options, trust, time, end."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent.adapters import authorities

# A peer that vanished without a word is noticed after about a minute, also on an idle watch.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def socket_options() -> list[tuple[int, int, int]]:
    """What is set on each socket before it connects."""
    from urllib3.connection import HTTPConnection

    defaults: Any = HTTPConnection.default_socket_options  # they turn Nagle's algorithm off
    return [
        *defaults,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in KEEPALIVE),
    ]


def capture_sockets(
    pool_manager: Any, capture: Callable[[socket.socket], None] = lambda _connected: None
) -> None:
    """Have `capture` called with each socket that the pools of this manager connect."""
    from urllib3.connection import HTTPSConnection

    def connecting(base: Any) -> Any:
        def connect(self: Any) -> None:
            if issubclass(base, HTTPSConnection):
                self.ssl_context = authorities.context_of(self)  # anew: its files may have changed
                if self.proxy_config:  # one that is spoken to by TLS is trusted as the API server
                    own = authorities.context_with_authorities(self)
                    self.proxy_config = self.proxy_config._replace(ssl_context=own)
            base.connect(self)
            self.captured = self.sock  # urllib3 forgets it for answers that end the connection
            capture(self.sock)

        return type(f"Captured{base.__name__}", (base,), {"connect": connect})

    pool_manager.pool_classes_by_scheme = {
        scheme: type(
            f"Captured{pool.__name__}", (pool,), {"ConnectionCls": connecting(pool.ConnectionCls)}
        )
        for scheme, pool in pool_manager.pool_classes_by_scheme.items()
    }


def read_within(answer: Any, seconds: float) -> None:
    """Bound the next reads from an answer, not what is sent on its connection later.

    Without effect once it has given the connection back: by then it is another request's.
    """
    if captured := getattr(answer.connection, "captured", None):
        captured.settimeout(seconds)


def shut_down(connected: Any) -> None:
    """End a connection below TLS, which wakes who reads from it."""
    lowest = getattr(connected, "socket", connected)  # of TLS in a proxy's TLS
    with suppress(OSError):  # it was closed meanwhile
        socket.socket.shutdown(lowest, socket.SHUT_RDWR)
