"""The process that ends blocks when the agent cannot: `vgpu-agent guard-blocks`.

HAMi-core's library waits as long as a word of its usage region is negative, and nothing but a write
ends that. So while the agent blocks such containers this process holds their regions open, told by
the agent over a socket that is its standard input. When that is closed, because the agent stops or
was killed, it writes 0 where it finds less, and ends. Where our library waits, a 1 stands for that
less; who merely was counted down is the same with 0.

A program of the standard library alone, so that it starts fast and stays small.
"""

import array
import contextlib
import os
import signal
import socket
import struct

MOST_HELD = 200  # the kernel passes at most 253 descriptors at once
OFFSET, WORD = struct.Struct("<Q"), struct.Struct("<i")
UNDERSTOOD = b"k"
ASKED = 1  # our library's question whether the agent lives


def main() -> int:
    """Guard what standard input says until it ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent's end says when; systemd signals both
    os.chdir("/")
    with socket.socket(fileno=0) as agent:
        guard(agent)
    return 0


def guard(agent: socket.socket) -> None:
    """Take sets of words to hold, each in the place of the one before, until the agent is gone."""
    held: list[tuple[int, int]] = []
    try:
        while (told := _received(agent)) is not None:
            _close(held)
            held = told
            agent.send(UNDERSTOOD)
    except OSError:
        pass  # gone in the middle of it
    for fd, at in held:
        unblock(fd, at)
    _close(held)


def unblock(fd: int, at: int) -> bool:
    """Let a library go on that waits; whether it did."""
    with contextlib.suppress(OSError):
        word = os.pread(fd, WORD.size, at)
        if len(word) == WORD.size and (WORD.unpack(word)[0] < 0 or WORD.unpack(word)[0] == ASKED):
            return os.pwrite(fd, WORD.pack(0), at) == WORD.size
    return False


def _received(agent: socket.socket) -> list[tuple[int, int]] | None:
    """Descriptors and offsets; None: the agent is gone."""
    room = socket.CMSG_SPACE(MOST_HELD * array.array("i").itemsize)
    message, extra, _, _ = agent.recvmsg(MOST_HELD * OFFSET.size + 1, room)
    if not message:
        return None
    fds = array.array("i")
    for level, kind, content in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return list(zip(fds, [at for (at,) in OFFSET.iter_unpack(message[1:])], strict=False))


def _close(held: list[tuple[int, int]]) -> None:
    for fd, _ in held:
        os.close(fd)


if __name__ == "__main__":
    raise SystemExit(main())
