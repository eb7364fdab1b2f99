"""The driver's files on the host: device nodes, libraries, programs, as containers will get them.

The host's paths are what runtimes are told; what is looked at may be a mount of them in our own
container (`container_driver_root`). Which files those are: `domain/driver_names.py`.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from agent.adapters.caches import COMMON_DEVICE_NODES
from agent.domain.cdi import CdiHook, CdiMount, Edits
from agent.domain.driver_names import (
    BESIDE,
    CONFIG_DIRS,
    CONFIG_FILES,
    FIRMWARE,
    GBM_BACKEND,
    GBM_LIBRARY,
    LIBRARY_DIRS,
    MODULE_DIRS,
    PROGRAM_DIRS,
    PROGRAMS,
    SOCKETS,
    USUAL_LINKS,
    X_DIRS,
    is_library,
    is_module,
    versions,
)
from agent.domain.gpu import Gpu
from agent.domain.grant_plan import imex_node
from agent.errors import NodeNotReady

EVERY_HOOK = "all"  # of the disabled ones
MANY_ENTRIES = 20_000  # of one directory
HOOK_PROGRAM = "nvidia-ctk"  # which has the hooks as a sub-command; nvidia-cdi-hook is the hooks

_EXTRA_NODES = {  # directory, and what is taken of it
    "gds": ("dev", re.compile(r"nvidia-fs\d+", re.ASCII)),
    "mofed": ("dev/infiniband", re.compile(r"uverbs\d+|rdma_cm", re.ASCII)),
    "gdrcopy": ("dev", re.compile(r"gdrdrv", re.ASCII)),
}
_EXTRA_MOUNTS = {"gds": ("run/udev", "etc/cufile.json")}
_DRM = re.compile(r"(card|renderD)\d{1,4}", re.ASCII)


class HostDriverFiles:
    """Implements `DriverFiles`. Keeps nothing: each question looks again."""

    def __init__(
        self,
        *,
        driver_root: Path = Path("/"),
        dev_root: Path | None = None,
        container_driver_root: Path | None = None,
        hook: Path | None = None,
        disabled_hooks: Iterable[str] = (),
        imex: Iterable[int] = (),
        imex_required: bool = False,
        sysfs: Path = Path("/sys"),
    ) -> None:
        """`hook`: nvidia-cdi-hook or nvidia-ctk of the host; None: files are put where they go."""
        self._driver_root = driver_root
        self._dev_root = dev_root or driver_root
        mounted = container_driver_root is not None and container_driver_root.is_dir()
        self._seen_at = container_driver_root if mounted and container_driver_root else driver_root
        self._hook = hook
        self._disabled_hooks = frozenset(disabled_hooks)
        self._imex = tuple(sorted(imex))
        self._imex_required = imex_required
        self._sysfs = sysfs

    # --- device nodes

    def common_nodes(self) -> tuple[str, ...]:
        """See `DriverFiles.common_nodes`."""
        return tuple(path for path in COMMON_DEVICE_NODES if self._has_node(path))

    def imex_there(self) -> tuple[int, ...]:
        """Those channels that the node has."""
        return tuple(channel for channel in self._imex if self._has_node(imex_node(channel)))

    def imex_channels(self) -> tuple[int, ...]:
        """See `DriverFiles.imex_channels`."""
        there = self.imex_there()
        if self._imex_required and there != self._imex:
            missing = next(channel for channel in self._imex if channel not in there)
            raise NodeNotReady(
                f"the node has no {imex_node(missing)}, and IMEX channel {missing} is required "
                "here: let the IMEX service make it, or set --imex-required=false"
            )
        return there

    def extra_nodes(self, name: str) -> tuple[str, ...]:
        """See `DriverFiles.extra_nodes`."""
        directory, wanted = _EXTRA_NODES[name]
        for root in (self._dev_root, self._seen_at):
            found = sorted(entry for entry in _names(root / directory) if wanted.fullmatch(entry))
            if found:
                return tuple(f"/{directory}/{entry}" for entry in found)
        return ()

    def drm_nodes(self, gpu: Gpu) -> tuple[str, ...]:
        """See `DriverFiles.drm_nodes`."""
        domain, _, rest = gpu.pci_bus_id.lower().partition(":")
        place = f"{domain[-4:]}:{rest}"
        names = _names(self._sysfs / "bus" / "pci" / "devices" / place / "drm") if rest else ()
        paths = (f"/dev/dri/{name}" for name in sorted(names) if _DRM.fullmatch(name))
        return tuple(path for path in paths if self._has_node(path))

    def _has_node(self, path: str) -> bool:
        return any((root / path[1:]).exists() for root in (self._dev_root, self._seen_at))

    # --- the driver

    def driver(self) -> Edits:
        """See `DriverFiles.driver`."""
        folders = self._folders()
        version = next((found for _, names in folders for found in versions(names)), "")
        if not version:
            raise NodeNotReady(
                f"no libcuda.so.<version> is below {self._seen_at}, so it cannot be said which "
                "files are the driver's: name its place with --nvidia-driver-root, and in a "
                "container mount that at --driver-root-ctr-path"
            )
        libraries = Edits()
        for folder, names in folders:
            libraries = libraries.plus(self._libraries(folder, names, version))
        for folder in X_DIRS:
            libraries = libraries.plus(self._modules(folder, version))
        return libraries.plus(Edits(mounts=tuple(self._others(version))))

    def _folders(self) -> list[tuple[str, frozenset[str]]]:
        """Directories with libraries, each once however many names it has."""
        found, seen = [], set()
        for folder in LIBRARY_DIRS:
            path = self._seen_at / folder
            try:
                info = path.stat()
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode) and (info.st_dev, info.st_ino) not in seen:
                seen.add((info.st_dev, info.st_ino))
                found.append((folder, frozenset(_names(path))))
        return found

    def _libraries(self, folder: str, names: frozenset[str], version: str) -> Edits:
        files = [name for name in sorted(names) if self._is_file(folder, name, version)]
        if not files:
            return Edits()
        links = dict(self._links(folder, names, frozenset(files)))
        links |= {
            usual: links[target]
            for usual, target in USUAL_LINKS.items()
            if target in links and usual not in names
        }
        modules = Edits(mounts=tuple(self._gbm(folder, version)))
        for below in MODULE_DIRS:
            modules = modules.plus(self._modules(f"{folder}/{below}", version))
        if self._hook is None:  # nobody makes links in the container: the file has all its names
            seen = folder.removesuffix(BESIDE)  # where a container's loader looks by itself
            all_names = {name: name for name in files} | links
            mounts = [
                self._mount(f"{folder}/{file}", f"{seen}/{name}")
                for name, file in all_names.items()
            ]
            return Edits(mounts=tuple(mounts)).plus(modules)
        mounts = [self._mount(f"{folder}/{name}", f"{folder}/{name}") for name in files]
        hooks = (*self._linking(folder, links),
                 *self._made_hook("update-ldcache", ["--folder", f"/{folder}"]))  # fmt: skip
        return Edits(mounts=tuple(mounts), hooks=hooks).plus(modules)

    def _is_file(self, folder: str, name: str, version: str) -> bool:
        """Whether it is a library of the driver, and not a link to one."""
        return is_library(name, version) and not (self._seen_at / folder / name).is_symlink()

    def _modules(self, folder: str, version: str) -> Edits:
        """What programs load from this directory by a name without a version."""
        place = self._seen_at / folder
        names = frozenset(_names(place))
        files = [  # perhaps by a link, as alternatives make them, perhaps to nothing
            name for name in sorted(names) if is_module(name, version) and (place / name).is_file()
        ]
        mounts = [self._mount(f"{folder}/{name}", f"{folder}/{name}") for name in files]
        links = dict(self._links(folder, names, frozenset(files)))
        if self._hook is None:
            mounts += [
                self._mount(f"{folder}/{file}", f"{folder}/{name}") for name, file in links.items()
            ]
        return Edits(mounts=tuple(mounts), hooks=self._linking(folder, links))

    def _gbm(self, folder: str, version: str) -> Iterator[CdiMount]:
        library = f"{folder}/{GBM_LIBRARY}.{version}"
        if all(
            os.path.lexists(self._seen_at / path) for path in (f"{folder}/{GBM_BACKEND}", library)
        ):
            yield self._mount(library, f"{folder}/{GBM_BACKEND}")

    def _links(
        self, folder: str, names: frozenset[str], files: frozenset[str]
    ) -> Iterator[tuple[str, str]]:
        """Names that lead to these files within the directory, e.g. libcuda.so.1."""
        for name in sorted(names - files):
            if ".so" not in name or not name.startswith("lib"):
                continue
            target = name
            for _ in range(4):  # libcuda.so -> libcuda.so.1 -> libcuda.so.550.54
                try:
                    target = str((self._seen_at / folder / target).readlink())
                except OSError:
                    break
                if "/" in target:
                    break
                if target in files:
                    yield name, target
                    break

    def _others(self, version: str) -> Iterator[CdiMount]:
        for name in PROGRAMS:
            for folder in PROGRAM_DIRS:
                if (self._seen_at / folder / name).is_file():
                    yield self._mount(f"{folder}/{name}", f"{folder}/{name}")
                    break
        for path in SOCKETS:
            if (self._seen_at / path).exists():
                yield CdiMount(f"/{path}", str(self._driver_root / path), is_socket=True)
        for path in (f"{place}/{name}" for place in CONFIG_DIRS for name in CONFIG_FILES):
            if (self._seen_at / path).exists():
                yield self._mount(path, path)
        firmware = f"lib/firmware/nvidia/{version}"
        for name in sorted(_names(self._seen_at / firmware)):
            if FIRMWARE.fullmatch(name) and (self._seen_at / firmware / name).is_file():
                yield self._mount(f"{firmware}/{name}", f"{firmware}/{name}")

    def extra_mounts(self, name: str) -> Edits:
        """See `DriverFiles.extra_mounts`."""
        paths = _EXTRA_MOUNTS.get(name, ())
        return Edits(
            mounts=tuple(
                self._mount(path, path) for path in paths if (self._seen_at / path).exists()
            )
        )

    def _mount(self, host: str, container: str) -> CdiMount:
        return CdiMount(f"/{container}", str(self._driver_root / host))

    def _linking(self, folder: str, links: Mapping[str, str]) -> tuple[CdiHook, ...]:
        """Have links made in the container, where there is a hook for it."""
        named = [f"{file}::/{folder}/{link}" for link, file in links.items()]
        return self._made_hook(
            "create-symlinks", [word for one in named for word in ("--link", one)]
        )

    def _made_hook(self, name: str, args: list[str]) -> tuple[CdiHook, ...]:
        if self._hook is None or not args or {name, EVERY_HOOK} & self._disabled_hooks:
            return ()
        program = self._hook.name
        first = (program, "hook", name) if program == HOOK_PROGRAM else (program, name)
        return (CdiHook(str(self._hook), (*first, *args)),)


def _names(directory: Path) -> tuple[str, ...]:
    """What is in a directory; nothing when it cannot be read."""
    try:
        with os.scandir(directory) as entries:
            return tuple(entry.name for entry in islice(entries, MANY_ENTRIES))
    except OSError:
        return ()
