"""A proxy for tests: it takes CONNECT, leads every tunnel to one port here, and notes who came."""

import base64
import contextlib
import socket
import socketserver
import ssl
import threading
from dataclasses import dataclass, field
from typing import Self

MAX_HEAD_BYTES = 8192


@dataclass(slots=True)
class ConnectProxy:
    """Listens on 127.0.0.1 from `with` on, by TLS with `tls`.

    `login`: "user:password" that it asks for.
    """

    leads_to_port: int
    login: str = ""
    tls: ssl.SSLContext | None = None
    asked_for: list[str] = field(default_factory=list)  # targets of tunnels that were made
    _server: socketserver.ThreadingTCPServer = field(init=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                if proxy.tls is None:
                    proxy._tunnel(self.connection)
                    return
                with (
                    contextlib.suppress(OSError),  # who does not trust us hangs up
                    proxy.tls.wrap_socket(self.connection, server_side=True) as client,
                ):
                    proxy._tunnel(client)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _tunnel(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
            part = client.recv(MAX_HEAD_BYTES)
            if not part:
                return
            head += part
        words = base64.b64encode(self.login.encode()).decode()
        if self.login and f"Proxy-Authorization: Basic {words}" not in head.decode("latin-1"):
            client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        self.asked_for.append(head.split(b" ")[1].decode())
        with socket.create_connection(("127.0.0.1", self.leads_to_port)) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            back.start()
            _pass_on(client, server)
            back.join(10)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)
