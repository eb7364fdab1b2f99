"""A container as the agent grants it: limits in a file that may change while the container runs."""

import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile, encode
from tests.gpu.tenants import Bed, Tenant

LINE_AT, PERMILLE_AT, SEQUENCE = 64, 64 + 32, struct.Struct("<I")  # docs/limits-file.md
PERMILLE = struct.Struct("<I")


@dataclass(frozen=True)
class Granted:
    """The library in a folder of its own, with the limits file and the usage region beside it."""

    bed: Bed
    folder: Path

    @classmethod
    def make(
        cls, bed: Bed, name: str, *, core_percent: float = 0, memory_bytes: int = 0,
        policy: CorePolicy = CorePolicy.FORCE,
    ) -> "Granted":  # fmt: skip
        """Write the files. 0: no limit."""
        made = cls(bed, bed.scratch / name)
        made.folder.mkdir()
        shutil.copy(bed.hook, made.folder / "libvgpu.so")
        gpu = DeviceLimit(
            uuid=bed.uuid, memory_limit_bytes=memory_bytes, core_permille=round(core_percent * 10)
        )
        region = str(made.folder / "region.cache")
        made.limits.write_bytes(
            encode(LimitsFile(devices=(gpu,), core_policy=policy, cache_path=region))
        )
        return made

    @property
    def limits(self) -> Path:
        """The limits file."""
        return self.folder / "vgpu.limits"

    def start(self, words: Sequence[str | int | float]) -> Tenant:
        """Start a program of this folder in it. Raises TenantError."""
        script, *arguments = map(str, words)
        environ = self.bed.environment(hooked=False, container="", more={})
        environ["LD_PRELOAD"] = str(self.folder / "libvgpu.so")
        command = [self.bed.python, str(Path(__file__).with_name(script)), *arguments]
        return self.bed.tenant(command, environ)

    def change(self, core_percent: float) -> None:
        """Change the share of time of a container that runs, as the agent writes it."""
        file = os.open(self.limits, os.O_RDWR)
        try:
            (sequence,) = SEQUENCE.unpack(os.pread(file, SEQUENCE.size, LINE_AT))
            os.pwrite(file, SEQUENCE.pack(sequence + 1), LINE_AT)
            os.pwrite(file, PERMILLE.pack(round(core_percent * 10)), PERMILLE_AT)
            os.pwrite(file, SEQUENCE.pack(sequence + 2), LINE_AT)
        finally:
            os.close(file)
