"""The words of usage regions on the host that a monitor steers libraries by: found, read, written.

A process of the container can exchange, cut or fill its region while we work. So what is opened is
known to be a regular file of one name before it is opened for more than being looked at, nothing is
mapped (a file that is cut would end the agent), and what is written is four bytes at two places of
a layout we know. Regions stay open between looks, because some are read many times a second.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.adapters.caches import is_directory_name
from agent.adapters.region_files import NoRegionError, open_region, opened_containers
from agent.adapters.safe_files import DIRECTORY, refusing
from agent.boundaries import passed
from agent.domain.region import TAIL_OFFSET
from agent.domain.switch_words import (
    ACTIVITY_AT,
    DEVICE_BYTES,
    HEADER_BYTES,
    TAIL_HEAD_BYTES,
    TRAILER_BYTES,
    WORD,
    SwitchWords,
    is_ours,
    layout_of,
    words_of,
)
from agent.ports import ContainerKey, Held

SUFFIX = ".cache"
MAX_ENTRIES = 8  # of a container's directory that are looked at; HAMi's monitor takes two


@dataclass(frozen=True, slots=True)
class _Region:
    """One that is open."""

    fd: int
    name: str
    identity: tuple[int, int]  # device and inode
    layout: Mapping[str, int]
    ours: bool  # it has the counters of our library


class HostRegionSwitches:
    """Implements `ports.RegionSwitches` below one directory of the host. Used by one thread."""

    def __init__(self, host_vgpu_dir: Path) -> None:
        self._root = host_vgpu_dir
        self._open: dict[ContainerKey, _Region] = {}
        self._directories: frozenset[ContainerKey] = frozenset()
        self._wanted: Sequence[tuple[ContainerKey, int]] | None = None
        self._reads: list[tuple[int, int]] = []  # what that comes to: descriptors, bytes of each

    def close(self) -> None:
        """Let go of all of them."""
        for key in tuple(self._open):
            self._drop(key)

    # --- ports.RegionSwitches

    def refresh(self) -> dict[ContainerKey, SwitchWords]:
        """See `ports.RegionSwitches.refresh`."""
        found: dict[ContainerKey, SwitchWords] = {}
        directories = set()
        with (
            refusing("look for usage regions", self._root),
            contextlib.suppress(FileNotFoundError),  # nobody was given anything yet
            opened_containers(self._root) as parent,
        ):
            for name in filter(is_directory_name, os.listdir(parent)):  # noqa: PTH208 - a descriptor
                pod_uid, _, container = name.partition("_")
                directories.add((pod_uid, container))
                words = self._refreshed((pod_uid, container), name, parent)
                if words is not None:
                    found[pod_uid, container] = words
        for key in self._open.keys() - found.keys():
            self._drop(key)
        self._directories = frozenset(directories)
        return found

    def directories(self) -> frozenset[ContainerKey]:
        """See `ports.RegionSwitches.directories`."""
        return self._directories

    def put(
        self, key: ContainerKey, *, recent_kernel: int | None = None, switch: int | None = None
    ) -> bool:
        """See `ports.RegionSwitches.put`."""
        region = self._open.get(key)
        if region is None:
            return False
        try:
            if not _is_whole(region):
                return False
            for at, value in (("recent_kernel", recent_kernel), ("utilisation_switch", switch)):
                if value is not None:
                    os.pwrite(region.fd, WORD.pack(value), region.layout[at])
                    passed("region-switched")
        except OSError:
            return False
        return True

    def recent_kernel(self, key: ContainerKey) -> int | None:
        """See `ports.RegionSwitches.recent_kernel`."""
        region = self._open.get(key)
        if region is None:
            return None
        try:
            word = os.pread(region.fd, WORD.size, region.layout["recent_kernel"])
        except OSError:
            return None
        return int(WORD.unpack(word)[0]) if len(word) == WORD.size else None

    def counters(self, wanted: Sequence[tuple[ContainerKey, int]]) -> list[bytes]:
        """See `ports.RegionSwitches.counters`."""
        if wanted is not self._wanted:  # many times a second it is the same
            self._wanted = wanted
            self._reads = [_read_of(self._open.get(key), places) for key, places in wanted]
        return [_pread(fd, length) for fd, length in self._reads]

    def held(self, key: ContainerKey) -> Held | None:
        """See `ports.RegionSwitches.held`."""
        region = self._open.get(key)
        if region is None:
            return None
        return Held(region.fd, region.layout["recent_kernel"], region.identity)

    # --- below

    def _refreshed(self, key: ContainerKey, directory: str, parent: int) -> SwitchWords | None:
        """The words of a container's region, opened if it is not; None: it has none."""
        try:
            known = self._open.get(key)
            info = _still(known, directory, parent) if known else None
            if known is None or info is None:
                self._drop(key)
                known = _opened_in(directory, parent)
                if known is None:
                    return None
                self._open[key], self._wanted = known, None
                info = os.fstat(known.fd)
            return _words(known, info)
        except OSError:
            return None

    def _drop(self, key: ContainerKey) -> None:
        region = self._open.pop(key, None)
        if region is not None:
            self._wanted = None
            os.close(region.fd)


def _read_of(region: _Region | None, places: int) -> tuple[int, int]:
    if region is None or not region.ours:
        return -1, 0
    return region.fd, DEVICE_BYTES * places


def _pread(fd: int, length: int) -> bytes:
    try:
        return os.pread(fd, length, ACTIVITY_AT) if length else b""
    except OSError:
        return b""


def _still(region: _Region, directory: str, parent: int) -> os.stat_result | None:
    """Of what is open, if its name leads to it still; what else lies there does not matter."""
    name = f"{directory}/{region.name}"
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None
    return info if (info.st_dev, info.st_ino) == region.identity else None


def _opened_in(directory: str, parent: int) -> _Region | None:
    fd = os.open(directory, DIRECTORY, dir_fd=parent)
    try:
        return _opened(fd)
    finally:
        os.close(fd)


def _opened(directory: int) -> _Region | None:
    """The directory's region, if it has exactly one and that is none of a link's doing."""
    names = []
    with os.scandir(directory) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                return None
            if entry.name.endswith(SUFFIX):
                names.append(entry.name)
    if len(names) != 1:
        return None
    try:
        fd, info = open_region(names[0], directory, os.O_RDWR, lambda _: "")
    except NoRegionError:
        return None
    try:
        layout = layout_of(os.fstat(fd).st_size, os.pread(fd, HEADER_BYTES, 0))
        if layout is not None:
            ours = is_ours(os.pread(fd, TAIL_HEAD_BYTES, TAIL_OFFSET))
            return _Region(fd, names[0], (info.st_dev, info.st_ino), layout, ours)
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _is_whole(region: _Region) -> bool:
    """Whether the words to be written still lie inside a region of that layout."""
    info = os.fstat(region.fd)
    header = os.pread(region.fd, WORD.size * 2, 0)
    return info.st_nlink == 1 and layout_of(info.st_size, header) is region.layout


def _words(region: _Region, info: os.stat_result) -> SwitchWords | None:
    header = os.pread(region.fd, HEADER_BYTES, 0)
    if info.st_nlink != 1 or layout_of(info.st_size, header) is not region.layout:
        return None
    trailer = os.pread(region.fd, TRAILER_BYTES, region.layout["slot_count"])
    return words_of(region.layout, header, trailer)
