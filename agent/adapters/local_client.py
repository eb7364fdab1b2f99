"""A client of the agent's local sockets: HTTP over a Unix socket, one request per connection."""

import errno
import grp
import http.client
import json
import pwd
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.errors import AgentError

READ_SOCKET, CONTROL_SOCKET = "read.sock", "control.sock"
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 << 20
NOT_FOUND = 404
RUNTIME_DIR, RUNTIME_DIR_VARIABLE = "/run/vgpu-agent", "VGPU_RUNTIME_DIR"


def runtime_dir(environ: Mapping[str, str]) -> Path:
    """Where the agent of this node has its sockets, as far as the environment says."""
    return Path(environ.get(RUNTIME_DIR_VARIABLE) or RUNTIME_DIR)


class AgentUnreachable(AgentError):
    """The agent's socket gives no answer; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the agent said. A body that is no JSON is None."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """Whether it did what was asked."""
        return 200 <= self.status < 300  # noqa: PLR2004 - HTTP's own numbers


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Where many wait to be let in, a socket with a timeout of Python's fails at once; one that
        # blocks waits in the kernel's line, for so long: unix(7), connect(2), SO_SNDTIMEO.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(self._timeout_s))
        self.sock.connect(str(self._path))
        self.sock.settimeout(self._timeout_s)


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))


def ask(
    socket_path: Path,
    method: str,
    target: str,
    body: Any = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Answer:
    """Send one request, with `body` as JSON, and give the answer. Raises AgentUnreachable."""
    connection = _UnixConnection(socket_path, timeout_s)
    try:
        sent = None if body is None else json.dumps(body)
        headers = {} if sent is None else {"Content-Type": "application/json"}
        connection.request(method, target, body=sent, headers=headers)
        response = connection.getresponse()
        content = response.read(MAX_ANSWER_BYTES)
    except OSError as error:
        raise AgentUnreachable(_explained(socket_path, error)) from error
    except http.client.HTTPException as error:
        raise AgentUnreachable(
            f"what listens on {socket_path} does not speak HTTP as the agent does "
            f"({type(error).__name__}): see who has made that socket"
        ) from error
    finally:
        connection.close()
    return Answer(response.status, _decoded(content))


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _explained(path: Path, error: OSError) -> str:
    if isinstance(error, (TimeoutError, BlockingIOError)):
        return (
            f"the agent does not answer on {path} in time: look at its log, and whether its node "
            "or its disk is overloaded"
        )
    why = {
        errno.ENOENT: "there is no such socket: the agent does not run on this node, is older "
        "than this command, or has another --runtime-dir",
        errno.ECONNREFUSED: "nobody listens there any more: the agent has ended; start it",
        errno.EACCES: _who_may(path),
    }.get(error.errno or 0, error.strerror or str(error))
    return f"the agent cannot be reached on {path}: {why}"


def _who_may(path: Path) -> str:
    try:
        info = path.stat()
    except OSError:
        return "you may not look into its directory: run this as root"
    owner = _name(info.st_uid, lambda uid: pwd.getpwuid(uid).pw_name)
    if not info.st_mode & stat.S_IWGRP:
        return f"it is for {owner} only: run this as {owner}"
    group = _name(info.st_gid, lambda gid: grp.getgrgid(gid).gr_name)
    return (
        f"it is for {owner} and the group {group}: run this as {owner}, or join the group "
        f"(`usermod -aG {group} USER`, and log in anew); --socket-group of the agent names it"
    )


def _name(number: int, look_up: Callable[[int], str]) -> str:
    try:
        return look_up(number)
    except KeyError:
        return str(number)
