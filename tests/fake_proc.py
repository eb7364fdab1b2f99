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

    def end_first_thread(self, pid: int, other: int) -> None:
        """As `pthread_exit` in main: what the process has is seen at its other thread alone."""
        where = self.root / str(pid)
        thread = where / "task" / str(other)
        shutil.copytree(where, thread, symlinks=True, ignore=shutil.ignore_patterns("task"))
        (thread / "status").write_text(f"Name:\tx\nNSpid:\t{other}\t{other}\n")
        fields = (where / "stat").read_text().split()
        of_thread = [str(other), *fields[1:21], str(other), *fields[22:]]
        (thread / "stat").write_text(" ".join(of_thread) + "\n")
        fields[2], fields[25], fields[27] = "Z", "0", "0"
        (where / "stat").write_text(" ".join(fields) + "\n")
        (where / "cgroup").write_text("0::/\n")  # as under v1
        (where / "maps").write_text("")
        for name in ("mountinfo", "exe"):
            (where / name).unlink()
        shutil.rmtree(where / "fd")

    def opens(self, pid: int, path: str) -> None:
        descriptors = self.root / str(pid) / "fd"
        (descriptors / str(len(list(descriptors.iterdir())))).symlink_to(path)
