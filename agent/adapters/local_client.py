"""How a command on this node asks the agent that runs here: HTTP over its Unix sockets.

What went wrong is told in sentences for the person who typed the command: no agent, no such
socket, no permission, an answer that is none.
"""

import grp
import http.client
import os
import pwd
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from agent.errors import AgentError

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 2**20
SUN_PATH_BYTES = 107


class AgentUnreachable(AgentError):
    """The agent could not be asked; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """What the agent answered."""

    status: int
    body: bytes


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection through a socket file."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    path: Path, method: str, target: str, body: bytes | None = None, timeout_s: float = TIMEOUT_S
) -> LocalAnswer:
    """One request, e.g. `ask(socket_path, "GET", "/v1/use")`. Raises AgentUnreachable."""
    if len(os.fsencode(path)) > SUN_PATH_BYTES:
        raise AgentUnreachable(
            f"{path} is too long for a socket (at most {SUN_PATH_BYTES} bytes); have the agent use "
            "a shorter --runtime-dir, or name the socket by a shorter path, e.g. a relative one"
        )
    connection = _UnixConnection(path, timeout_s)
    try:
        connection.request(method, target, body, {"Accept": "application/json"})
        response = connection.getresponse()
        content = response.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise AgentUnreachable(_explained(path, error)) from error
    finally:
        connection.close()
    if len(content) > MAX_ANSWER_BYTES:
        raise AgentUnreachable(
            f"what answers at {path} does not come to an end, so it is no vgpu-agent; look what it "
            "is, or name the agent's socket with --socket"
        )
    return LocalAnswer(response.status, content)


def _explained(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            f"there is no socket {path}: the agent does not run on this node, or has another "
            "--runtime-dir; start it (`systemctl start vgpu-agent`), or name its socket with "
            "--socket"
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            f"nobody listens at {path}: the agent that made it has ended; start it again "
            "(`systemctl start vgpu-agent`; its log says why it ended)"
        )
    if isinstance(error, PermissionError):
        return f"you may not connect to {path}: {_who_may(path)}"
    if isinstance(error, TimeoutError):
        return (
            f"the agent does not answer at {path}; look at its log, or send it SIGUSR1 to have it "
            "say where it hangs"
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{path} cannot be asked: {error.strerror}; name the agent's socket with --socket"
    return (
        f"what answers at {path} does not speak HTTP, so it is no vgpu-agent; name the agent's "
        "socket with --socket"
    )


def _who_may(path: Path) -> str:
    try:
        info = path.stat()
    except OSError:
        return f"the directory {path.parent} does not let you in; run this as root"
    if not info.st_mode & stat.S_IWGRP:
        return f"it is for {_user(info.st_uid)} only; run this as {_user(info.st_uid)}"
    return (
        f"it is for {_user(info.st_uid)} and the group {_group(info.st_gid)}; run this as root, or "
        f"join the group (`usermod -aG {_group(info.st_gid)} $USER`, then log in anew); which "
        "group it is, the agent's --socket-group says"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
