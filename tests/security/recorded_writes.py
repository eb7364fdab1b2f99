"""Which paths does a call write to, and which functions of the agent do that? By what they ask for.

Whatever changes the disk by a path or a descriptor goes through a function of `os`, `open` or a
socket's `bind`. Each is told of before it is done, whether it succeeds or not.
"""

import ast
import builtins
import io
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).resolve().parents[2] / "agent"
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Which arguments are paths or descriptors, by function.
CHANGES = {
    "chmod": (0,), "chown": (0,), "fchmod": (0,), "fchown": (0,), "fdatasync": (), "fsync": (),
    "ftruncate": (0,), "lchown": (0,), "link": (0, 1), "mkdir": (0,), "mkfifo": (0,),
    "mknod": (0,), "posix_fallocate": (0,), "pwrite": (0,), "remove": (0,), "rename": (0, 1),
    "replace": (0, 1), "rmdir": (0,), "symlink": (1,), "truncate": (0,), "unlink": (0,),
    "utime": (0,), "write": (0,),
}  # fmt: skip
# Names that nobody can guess, and so put nothing at: of `replace_whole`, and of the deletion; and
# those with an inode (exchanged_limits.py), which are only made and taken away, never written to.
UNGUESSABLE = re.compile(
    r"\..+\.\d+\.[0-9a-f]{8}|\.\d+-[0-9a-f]{16}|[0-9a-f-]{36}_[a-z0-9.-]+\.\d+"
)


@dataclass(slots=True)
class Recorded:
    """What was written to, and by which functions ("file.py:name") of the agent."""

    paths: set[Path] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)

    def note(self, path: object, dir_fd: object = None) -> None:
        functions = set(_of_the_agent())
        self.functions |= functions
        found = _found(path, dir_fd)
        if functions and found is not None and not UNGUESSABLE.fullmatch(found.name):
            self.paths.add(found)


def _found(path: object, dir_fd: object) -> Path | None:
    """Where it is, without following the last name; None: no file, as a pipe is none."""
    if isinstance(path, int):
        there = os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115 - it may be no path
        return Path(there.removesuffix(" (deleted)")) if there.startswith("/") else None
    text = os.fsdecode(path)  # type: ignore[arg-type] # of whatever os.open takes
    if isinstance(dir_fd, int):
        text = f"/proc/self/fd/{dir_fd}/{text}"
    if descriptor := re.match(r"/proc/self/fd/(\d+)", text):
        text = f"{Path(descriptor[0]).readlink()}{text.removeprefix(descriptor[0])}"
    return Path(os.path.abspath(text))  # noqa: PTH100 - links are not resolved


def _of_the_agent() -> Iterator[str]:
    """The function of the agent that is nearest; of a function within another both."""
    frame = sys._getframe(3)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(AGENT):
            for name in frame.f_code.co_qualname.split("."):
                yield f"{file.relative_to(AGENT)}:{name}"
            return
        frame = frame.f_back  # type: ignore[assignment] # None at the end


def _told(name: str, real: Callable[..., Any], recorded: Recorded) -> Callable[..., Any]:
    def act(*args: Any, **keywords: Any) -> Any:
        fds = {1: keywords.get("dst_dir_fd")} if "dst_dir_fd" in keywords else {}
        for at in CHANGES[name]:
            fd = fds.get(at, keywords.get("src_dir_fd") if at == 0 else None)
            recorded.note(args[at], fd if fd is not None else keywords.get("dir_fd"))
        return real(*args, **keywords)

    return act


@contextmanager
def recording() -> Iterator[Recorded]:
    """Note whatever this process writes meanwhile."""
    recorded = Recorded()
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, _told(name, getattr(os, name), recorded))
        os_open, plain_open, bind = os.open, builtins.open, socket.socket.bind

        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if flags & WRITING:
                recorded.note(path, dir_fd)
            return os_open(path, flags, mode, dir_fd=dir_fd)

        def opened_plainly(file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
            if set(mode) & set("wax+"):
                recorded.note(file)
            return plain_open(file, mode, *args, **keywords)

        def bound(self: socket.socket, address: Any) -> None:
            if self.family == socket.AF_UNIX:
                recorded.note(address)
            bind(self, address)

        patch.setattr(os, "open", opened)
        patch.setattr(builtins, "open", opened_plainly)
        patch.setattr(io, "open", opened_plainly)
        patch.setattr(socket.socket, "bind", bound)
        yield recorded


# --- what there is ---------------------------------------------------------------------------------

# What changes something by its name; by a descriptor, whoever opened it has named it.
BY_NAME = {
    "chmod", "chown", "lchown", "link", "makedirs", "mkdir", "mkfifo", "mknod", "remove", "rename",
    "replace", "rmdir", "symlink", "truncate", "unlink",
}  # fmt: skip
OF_PATHS = {
    "bind", "hardlink_to", "mkdir", "rename", "rmdir", "symlink_to", "unlink", "write_bytes",
    "write_text", "copytree", "rmtree", "copyfile", "NamedTemporaryFile", "TemporaryDirectory",
    "mkdtemp", "mkstemp",
}  # fmt: skip
WRITING_FLAGS = {"O_CREAT", "O_RDWR", "O_WRONLY"}
OTHERS = ("sim", "demo", "hostinstall")  # stand-ins, and tests/security/test_install_paths.py


def functions_that_write() -> Iterator[str]:
    """Every function of the agent that changes something by its name, as "file.py:name"."""
    for path in sorted(AGENT.rglob("*.py")):
        file = path.relative_to(AGENT)
        if file.parts[0] not in OTHERS:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and _names_what_it_writes(node):
                    yield f"{file}:{node.name}"


def _names_what_it_writes(function: ast.FunctionDef) -> bool:
    words = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(_is_by_name(call, opens_to_write=bool(words & WRITING_FLAGS)) for call in calls)


def _is_by_name(call: ast.Call, *, opens_to_write: bool) -> bool:
    called = call.func
    modes = [arg.value for arg in call.args[:2] if isinstance(arg, ast.Constant)]
    to_write = any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes)
    if isinstance(called, ast.Name):
        return called.id in OF_PATHS or (called.id == "open" and to_write)
    if not isinstance(called, ast.Attribute):
        return False
    if isinstance(called.value, ast.Name) and called.value.id == "os":
        return called.attr in BY_NAME or (called.attr == "open" and opens_to_write)
    return called.attr in OF_PATHS or (called.attr == "open" and to_write)
