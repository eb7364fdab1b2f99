"""Reads the usage regions of containers: our library's and HAMi-core's, as a stranger's files.

Bounded reads of what is in use, through descriptors that are closed again at once: nothing is kept
of a container whose directory goes. docs/usage-region.md says what is turned away.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from agent.adapters.caches import directory_name, is_directory_name
from agent.adapters.region_files import (
    NoRegionError,
    opened_containers,
    opened_region,
    seen_region,
)
from agent.adapters.safe_files import opened_directory, refusing
from agent.domain.expected_region import Expected, spoiled
from agent.domain.region import MalformedRegion, NotMadeYet, Rejected, read_region
from agent.domain.region_reading import RegionName, RegionReading
from agent.errors import NodeNotReady

SUFFIX = ".cache"
MAX_ENTRIES = 64  # of a container's directory: HAMi's and ours have one, or two
MAX_DIRECTORIES = 10_000
NOT_MADE_YET = RegionReading()


class HostRegionReader:
    """Implements `ports.RegionReader` below one directory of the host. Keeps no state."""

    def __init__(self, host_vgpu_dir: Path) -> None:
        self._root = host_vgpu_dir

    def directories(self) -> tuple[tuple[str, str], ...]:
        """See `ports.RegionReader.directories`."""
        with (
            refusing("list the containers' directories", self._root),
            contextlib.suppress(FileNotFoundError),
            opened_containers(self._root) as containers,
            os.scandir(containers) as entries,
        ):
            names = [e.name for e in itertools.islice(entries, MAX_DIRECTORIES)]
            found = [name.partition("_") for name in names if is_directory_name(name)]
            return tuple((uid, container) for uid, _, container in found)
        return ()

    def read(self, names: Iterable[RegionName]) -> Iterator[RegionReading]:
        """See `ports.RegionReader.read`."""
        with contextlib.ExitStack() as opened:
            containers = self._opened(opened)
            for name in names:
                yield NOT_MADE_YET if containers is None else _read(name, containers)

    def _opened(self, opened: contextlib.ExitStack) -> int | None:
        """None: there is no directory yet."""
        with refusing("read usage regions", self._root), contextlib.suppress(FileNotFoundError):
            return opened.enter_context(opened_containers(self._root))
        return None


def _read(name: RegionName, containers: int) -> RegionReading:
    try:
        with opened_directory(
            directory_name(name.pod_uid, name.container), dir_fd=containers
        ) as directory:
            return _read_in(name, directory)
    except FileNotFoundError:  # what belongs to the node is not the container's doing
        return NOT_MADE_YET
    except NodeNotReady as error:  # a name that is none
        return RegionReading(rejected=Rejected.UNREADABLE, problem=str(error))
    except NoRegionError as error:
        return RegionReading(rejected=error.reason, problem=str(error))
    except MalformedRegion as error:
        return RegionReading(rejected=error.reason, problem=f"it is no usage region: {error}")
    except OSError as error:
        problem = f"it cannot be read: {error.strerror or type(error).__name__}"
        return RegionReading(rejected=Rejected.UNREADABLE, problem=problem)


def _read_in(name: RegionName, directory: int) -> RegionReading:
    try:
        if file := name.name or _only_region(directory):
            return _read_file(file, directory, name.expected)
    except FileNotFoundError:
        pass
    if why := spoiled(name.expected, None):
        return RegionReading(rejected=why[0], problem=why[1])
    return NOT_MADE_YET


def _only_region(directory: int) -> str:
    """The region's name where no grant says it, as under HAMi's device plugin; empty: none yet.

    HAMi 2.10's monitor takes the first of two; which of them its processes use is not known, so
    several are none. Raises OSError, NoRegionError.
    """
    with os.scandir(directory) as entries:
        seen = [entry.name for entry in itertools.islice(entries, MAX_ENTRIES + 1)]
    found = [name for name in seen if name.endswith(SUFFIX)]
    if len(found) > 1 or len(seen) > MAX_ENTRIES:
        raise NoRegionError(
            f"there are {len(found)} files *{SUFFIX} among {len(seen)} or more", Rejected.SEVERAL
        )
    return found[0] if found else ""


def _read_file(name: str, directory: int, expected: Expected) -> RegionReading:
    with opened_region(name, directory, os.O_RDONLY, lambda _: "") as (fd, size_bytes):
        region = None
        with contextlib.suppress(NotMadeYet):
            region = read_region(size_bytes, functools.partial(_piece, fd), expected.places)
        if why := spoiled(expected, seen_region(fd)):
            return RegionReading(rejected=why[0], problem=why[1])
        if region is None:
            return NOT_MADE_YET
        after = os.fstat(fd)
        if (after.st_size, after.st_nlink) != (size_bytes, 1):
            raise NoRegionError("it was exchanged or cut while it was read", Rejected.CHANGED)
        return RegionReading(region=region)


def _piece(fd: int, at: int, size: int) -> bytes:
    return os.pread(fd, size, at)
