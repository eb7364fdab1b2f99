"""Usage regions as HAMi-core makes them, and a program that goes by one as its library does."""

import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agent.domain.region import MAGIC, V0, V1

V0_FILE_BYTES, V1_FILE_BYTES = 1197897, 2008953  # as that library makes them: a byte more
GPU_A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
GPU_B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
PROGRAM = Path(__file__).resolve().parent / "hami_core_tenant.py"


@dataclass(frozen=True)
class HamiRegion:
    """A file, and the words of it that a monitor reads and writes."""

    path: Path
    version: int

    @property
    def layout(self) -> dict[str, int]:
        return dict(V1 if self.version else V0)

    def word(self, name: str) -> int:
        with self.path.open("rb") as file:
            file.seek(self.layout[name])
            return int(struct.unpack("<i", file.read(4))[0])

    def put(self, name: str, value: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.layout[name])
            file.write(struct.pack("<i", value))

    @property
    def recent_kernel(self) -> int:
        return self.word("recent_kernel")

    @property
    def switch(self) -> int:
        return self.word("utilisation_switch")


def hami_region(
    path: Path, *uuids: str, version: int = 1, priority: int = 1, sm_percent: int = 100
) -> HamiRegion:
    """Make one as that library does at the first use: recent kernel 2, switch 1."""
    content = bytearray(V1_FILE_BYTES if version else V0_FILE_BYTES)
    layout = V1 if version else V0
    struct.pack_into("<i", content, 0, MAGIC)
    if version:
        struct.pack_into("<II", content, 4, 1, 1)
    struct.pack_into("<Q", content, layout["device_count"], len(uuids))
    for place, uuid in enumerate(uuids):
        at = layout["uuids"] + 96 * place
        content[at : at + len(uuid)] = uuid.encode()
        struct.pack_into("<Q", content, layout["sm_percent"] + 8 * place, sm_percent)
    struct.pack_into("<iii", content, layout["utilisation_switch"], 1, 2, priority)
    path.write_bytes(content)
    path.chmod(0o666)
    return HamiRegion(path, version)


def hami_tenant(region: HamiRegion, *, sleep_s: float = 1.0) -> "subprocess.Popen[str]":
    """A program that launches all the time, as far as its region lets it; prints a line for each."""
    words = [sys.executable, "-S", PROGRAM, region.path, str(region.layout["recent_kernel"])]
    return subprocess.Popen(
        [*words, str(sleep_s)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
