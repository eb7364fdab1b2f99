"""A /proc of made-up processes: plain files, and links that lead nowhere, as the real ones look."""

import shutil
from collections.abc import Sequence
from pathlib import Path

MAPS_LIBRARY = "7f00-7f10 r-xp 00000000 08:01 42    /usr/local/vgpu/libvgpu.so\n"
MAPS_DRIVER = "7f20-7f30 r-xp 00000000 08:01 43    /usr/lib/libcuda.so.1\n"
MAPS_PLAIN = "7f40-7f50 r-xp 00000000 08:01 44    /usr/lib/libc.so.6\n"
NAMESPACE = 4026532999


class FakeProc:
    """The directory; `add` is a fork and an exec, `remove` an end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(1, namespace=NAMESPACE)
        (root / "self").symlink_to("1")

    def add(
        self,
        pid: int,
        cgroup: str = "0::/init.scope\n",
        *,
        inside: int = 1,
        state: str = "S",
        start_time: int = 5,
        stack_at: int = 9,
        maps: str = MAPS_PLAIN,
        mountinfo: str = "",
        opened: Sequence[str] = ("/dev/null",),
        exe: Path | str = "/nowhere",
        namespace: int = NAMESPACE,
    ) -> Path:
        self.remove(pid)
        where = self.root / str(pid)
        (where / "fd").mkdir(parents=True)
        (where / "ns").mkdir()
        (where / "ns" / "pid").symlink_to(f"pid:[{namespace}]")
        (where / "exe").symlink_to(exe)
        for number, path in enumerate(opened):
            (where / "fd" / str(number)).symlink_to(path)
        numbers = " ".join(["0"] * 18)
        texts = {
            "cgroup": cgroup,
            "mountinfo": mountinfo,
            "maps": maps,
            "status": f"Name:\tx\nNSpid:\t{pid}\t{inside}\n",
            "stat": f"{pid} (x) {state} {numbers} {start_time} 1 1 1 7 8 {stack_at} 0 0\n",
        }
        for name, text in texts.items():
            (where / name).write_text(text)
        return where

    def remove(self, pid: int) -> None:
        where = self.root / str(pid)
        if where.exists():
            shutil.rmtree(where)

    def opens(self, pid: int, path: str) -> None:
        descriptors = self.root / str(pid) / "fd"
        (descriptors / str(len(list(descriptors.iterdir())))).symlink_to(path)
