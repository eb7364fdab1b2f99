"""How does another process make a node of peers lose its kubelet? With a word on a unix socket.

`python remote.py SOCKET WORD` says one word and waits until it is done; it is what the commands are
that `python -m peers.node` prints. Standard library only, so that saying a word takes no time.
"""

import select
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

DONE = b"done"
LONGEST_S = 120.0


def listen(path: Path, deeds: Mapping[str, Callable[[], None]], *, until_end_of: IO[str]) -> None:
    """Do what is asked for on the socket, in this thread, until that input ends.

    In this thread, because a process that is started by another one dies with that thread.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        while True:
            ready, _, _ = select.select([listener, until_end_of], [], [])
            if until_end_of in ready and not until_end_of.readline():
                return
            if listener in ready:
                asker, _ = listener.accept()
                with asker:
                    asker.sendall(_do(asker.recv(100).decode(errors="replace"), deeds))


def ask(path: Path, word: str) -> str:
    """Say one word and wait until it is done; gives what went wrong, empty when nothing did."""
    with socket.socket(socket.AF_UNIX) as asker:
        asker.settimeout(LONGEST_S)
        asker.connect(str(path))
        asker.sendall(word.encode())
        answer = asker.recv(10_000)
    return "" if answer == DONE else answer.decode() or "the node has ended"


def _do(word: str, deeds: Mapping[str, Callable[[], None]]) -> bytes:
    if word not in deeds:
        return f"{word!r} is none of {', '.join(deeds)}".encode()
    try:
        deeds[word]()
    except Exception as error:  # noqa: BLE001 - whoever asked shall read it
        return f"{word}: {error}"[:10_000].encode()
    return DONE


if __name__ == "__main__":
    sys.exit(ask(Path(sys.argv[1]), sys.argv[2]) or 0)
