"""What a kubeconfig holds itself (`...-data`) as files of this process, which nobody takes away.

The official client writes it into the directory for temporary files, and has it read by each new
connection. What cleans that directory up, every 10 or 30 days on many systems, so took the API
server from the agent until it was started anew; and one that was killed left a key there. Files in
memory need no directory, and end with the process.
"""

import ctypes
import os
from errno import EINVAL

CLOSED_FOR_CHILDREN = 0x1  # MFD_CLOEXEC
NO_EXECUTION = 0x8  # MFD_NOEXEC_SEAL: without it a hardened kernel refuses, and newer ones warn


class EmbeddedFiles:
    """Files by what is in them. Not thread-safe: whoever loads credentials does so alone."""

    def __init__(self) -> None:
        self._descriptors: dict[bytes, int] = {}
        self._asked: set[bytes] = set()  # since the last load
        self._asked_before: set[bytes] = set()

    def path_of(
        self, content: str | bytes, temp_file_path: str | None = None, force_recreate: bool = False
    ) -> str:
        """The path of a file with this content; in the place of the client's own function.

        Raises OSError.
        """
        del temp_file_path, force_recreate  # of files in a directory
        data = content.encode() if isinstance(content, str) else bytes(content)
        if data not in self._descriptors:
            self._descriptors[data] = _file_with(data)
        self._asked.add(data)
        return f"/proc/self/fd/{self._descriptors[data]}"

    def loaded(self) -> None:
        """Credentials have been loaded: close what neither these nor the ones before name.

        Those before may still be in use by a request that is being sent.
        """
        for data in self._descriptors.keys() - self._asked - self._asked_before:
            os.close(self._descriptors.pop(data))
        self._asked_before, self._asked = self._asked, set()


def _file_with(data: bytes) -> int:
    descriptor = _made()
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _made() -> int:
    try:
        return memory_file(CLOSED_FOR_CHILDREN | NO_EXECUTION)
    except OSError as error:
        if error.errno != EINVAL:
            raise
        return memory_file(CLOSED_FOR_CHILDREN)  # Linux before 6.3 does not know the other flag


def memory_file(flags: int) -> int:
    """memfd_create(2). Of libc, since Pythons built for one before 2.27, as ours, do not have it.

    Raises OSError.
    """
    create = ctypes.CDLL(None, use_errno=True).memfd_create
    descriptor: int = create(b"vgpu-agent-kubeconfig", ctypes.c_uint(flags))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor
