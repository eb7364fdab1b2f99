"""A container with the hook and the agent's limits file beside it, as tests write and change it."""

import json
import mmap
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from built_hook import built
from hooked_programs import Node

from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile, encode
from agent.domain.new_region import new_region
from agent.domain.region import FILE_BYTES

LINES_AT, LINE_BYTES = 64, 64
REGION_ID = 0x0123456789ABCDEF
_FIELDS = struct.Struct("<QIIQQ")  # from the memory limit on


@dataclass(frozen=True)
class LimitsBed:
    """The library's own directory, which the limits file lies in too."""

    node: Node
    library: Path

    @property
    def path(self) -> Path:
        """The limits file, which need not be there."""
        return self.library.with_name("vgpu.limits")

    def write(
        self,
        *devices: DeviceLimit,
        core_policy: CorePolicy = CorePolicy.DEFAULT,
        cache: str | None = None,
        makes_region: bool = False,
    ) -> None:
        """Let the agent give the container these devices; and a usage region, if it makes that."""
        cache_path = str(self.node.cache) if cache is None else cache
        limits = LimitsFile(devices=devices, core_policy=core_policy, cache_path=cache_path)
        if makes_region:
            limits = replace(limits, region_inode=self._make_region(limits), region_id=REGION_ID)
        self.path.write_bytes(encode(limits))

    def _make_region(self, limits: LimitsFile) -> int:
        with self.node.cache.open("wb") as file:
            os.truncate(file.fileno(), FILE_BYTES)
            for piece in new_region(limits, region_id=REGION_ID, now_s=1_800_000_000):
                os.pwrite(file.fileno(), piece.content, piece.offset)
            os.fchmod(file.fileno(), 0o666)
            return os.fstat(file.fileno()).st_ino

    def environment(self, **env: str) -> dict[str, str]:
        """What a process is started with: this copy of the library; "" takes a variable away."""
        return {"LD_PRELOAD": str(self.library), **env}

    @contextmanager
    def line(self, place: int = 0) -> Iterator["Line"]:
        """A device's line, open for changes in place."""
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            yield Line(memory, LINES_AT + LINE_BYTES * place)


class Line:
    """One device's line of a limits file that is mapped."""

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        self._memory = memory
        self._at = at

    @property
    def sequence(self) -> int:
        return int.from_bytes(self._memory[self._at : self._at + 4], "little")

    def begin(self) -> None:
        """The agent starts to write the line."""
        self._memory[self._at : self._at + 4] = (self.sequence + 1).to_bytes(4, "little")

    end = begin

    def put(
        self, memory_bytes: int, permille: int = 0, lent: int = 0, until: int = 0, blocked: int = 0
    ) -> None:
        """Write what the line says, between begin and end."""
        packed = _FIELDS.pack(memory_bytes, permille, lent, until, blocked)
        self._memory[self._at + 24 : self._at + 24 + len(packed)] = packed

    def change(self, memory_bytes: int, **more: int) -> None:
        """Change it as the agent does."""
        self.begin()
        self.put(memory_bytes, **more)
        self.end()


class Talker:
    """A program in the container that does what it is told, line by line."""

    def __init__(self, bed: LimitsBed, device: int = 0, **env: str) -> None:
        code = f"start({device})\nimport sys\nfor line in sys.stdin: print(json.dumps(eval(line)), flush=True)"
        self._process = bed.node.start(code, env=bed.environment(**env))

    def ask(self, expression: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._process.communicate(timeout=60)[1]
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)


def limits_bed(node: Node, directory: Path) -> LimitsBed:
    """A container whose library lies in `directory`."""
    directory.mkdir()
    library = directory / "libvgpu.so"
    shutil.copy(built() / library.name, library)
    library.chmod(0o644)
    return LimitsBed(node, library)
