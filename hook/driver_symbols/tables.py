"""Which functions the driver has: cuda.tsv and nvml.tsv, read from the vendor's headers.

One line per exported function. `since` is the version that makes cuGetProcAddress give this ABI;
`first` is the first CUDA release we know that has it (the oldest stands for all before); `gone` is
the first release that has it no more, or `-`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hook.driver_symbols import headers
from hook.driver_symbols.headers import HeadersError, Release, dotted

CUDA_UNIT = "".join(f"#include <{name}.h>\n" for name in ("cuda", "cudaEGL", "cudaGL", "cudaVDPAU"))
CUDA_NAME, NVML_NAME = r"cu[A-Z]\w*", r"nvml[A-Z]\w*"
OTHER_SYSTEMS = ("cuWGL",)  # declared for Windows only; cudaGLTypedefs.h lists them everywhere

Family = tuple[str, bool]  # name in cuGetProcAddress, and whether the default stream is per thread


@dataclass(frozen=True)
class CudaSymbol:
    """One exported function of libcuda."""

    symbol: str
    name: str  # in cuGetProcAddress
    since: int
    per_thread: bool
    first: str
    gone: str


@dataclass(frozen=True)
class NvmlSymbol:
    """One exported function of libnvidia-ml."""

    symbol: str
    first: str
    gone: str


@dataclass(frozen=True)
class Declared:
    """What the headers of one release say."""

    functions: Mapping[str, str]  # symbol -> its parameters
    versions: Mapping[Family, frozenset[int]]  # versions of cuGetProcAddress that bring a new ABI


def split(symbol: str) -> tuple[Family, int]:
    """(("cuMemAllocAsync", True), 1) of cuMemAllocAsync_ptsz: its family, and its ABI's number."""
    name, per_thread = re.subn(r"_(?:ptsz|ptds)$", "", symbol)
    found = re.fullmatch(r"(.*)_v(\d+)", name)
    return (found[1] if found else name, bool(per_thread)), int(found[2]) if found else 1


def read_cuda(python: str, directory: Path, stand_ins: Path) -> Declared:
    """The functions of one release. Raises HeadersError."""
    text = headers.preprocessed(
        python, CUDA_UNIT, [directory, stand_ins], "__CUDA_API_VERSION_INTERNAL"
    )
    functions = dict(headers.declarations(text, CUDA_NAME))
    versions: dict[Family, set[int]] = defaultdict(set)
    for path in directory.glob("*Typedefs.h"):
        for name, since, per_thread in re.findall(
            rf"\*\s*PFN_({CUDA_NAME}?)_v(\d+)(_ptsz|_ptds)?\)\s*\(", path.read_text()
        ):
            if not name.startswith(OTHER_SYSTEMS):
                versions[name, bool(per_thread)].add(int(since))
    for name, per_thread in versions:  # the profiler's header is in no wheel; its typedefs are
        if not per_thread and not any(split(symbol)[0][0] == name for symbol in functions):
            functions[name] = ""
    if not functions or not versions:
        raise HeadersError(f"{directory} declares no functions; is it what the lock file pins?")
    return Declared(functions, {family: frozenset(found) for family, found in versions.items()})


def read_nvml(python: str, directory: Path) -> set[str]:
    """The functions of one release. Raises HeadersError."""
    text = headers.preprocessed(
        python, "#include <nvml.h>\n", [directory], "NVML_NO_UNVERSIONED_FUNC_DEFS"
    )
    found = {name for name, _ in headers.declarations(text, NVML_NAME)}
    if not found:
        raise HeadersError(f"{directory}/nvml.h declares no functions; is it what the lock pins?")
    return found


def cuda_table(releases: Mapping[Release, Declared]) -> list[CudaSymbol]:
    """Every function of every release. Raises HeadersError if an ABI has no version.

    The headers number the ABIs of a function (_v2, _v3) and, elsewhere, list the versions that
    brought them; both grow together, so the n-th ABI came with the n-th version.
    """
    versions: dict[Family, set[int]] = defaultdict(set)
    members: dict[Family, set[str]] = defaultdict(set)
    for declared in releases.values():
        for family, found in declared.versions.items():
            versions[family] |= found
        for symbol in declared.functions:
            members[split(symbol)[0]].add(symbol)
    lives = _lives({release: set(declared.functions) for release, declared in releases.items()})
    rows = []
    for family, symbols in members.items():
        in_order = sorted(symbols, key=lambda symbol: split(symbol)[1])
        since = sorted(versions[family])
        if len(in_order) != len(since):
            raise HeadersError(
                f"{family[0]} has {len(in_order)} ABIs ({', '.join(in_order)}) but versions "
                f"{since} in cudaTypedefs.h; decide in tables.py which belongs to which"
            )
        rows += [
            CudaSymbol(symbol, family[0], version, family[1], *lives[symbol])
            for symbol, version in zip(in_order, since, strict=True)
        ]
    return sorted(rows, key=lambda row: row.symbol)


def nvml_table(releases: Mapping[Release, set[str]]) -> list[NvmlSymbol]:
    """Every function of every release."""
    return [NvmlSymbol(symbol, *life) for symbol, life in sorted(_lives(releases).items())]


def _lives(releases: Mapping[Release, set[str]]) -> dict[str, tuple[str, str]]:
    """The first release that has each function, and the first that has it no more, or `-`."""
    lives = {}
    order = sorted(releases)
    for symbol in set().union(*releases.values()):
        having = [release for release in order if symbol in releases[release]]
        after = [release for release in order if release > having[-1]]
        lives[symbol] = (dotted(having[0]), dotted(after[0]) if after else "-")
    return lives


CUDA_HEAD = ("symbol", "name", "since", "per_thread", "first", "gone")
NVML_HEAD = ("symbol", "first", "gone")


def write_cuda(rows: Iterable[CudaSymbol]) -> str:
    """The text of cuda.tsv."""
    return _tsv(
        CUDA_HEAD,
        ((r.symbol, r.name, str(r.since), str(int(r.per_thread)), r.first, r.gone) for r in rows),
    )


def write_nvml(rows: Iterable[NvmlSymbol]) -> str:
    """The text of nvml.tsv."""
    return _tsv(NVML_HEAD, ((r.symbol, r.first, r.gone) for r in rows))


def parse_cuda(text: str) -> list[CudaSymbol]:
    """The rows of cuda.tsv."""
    return [
        CudaSymbol(symbol, name, int(since), per_thread == "1", first, gone)
        for symbol, name, since, per_thread, first, gone in _rows(text)
    ]


def parse_nvml(text: str) -> list[NvmlSymbol]:
    """The rows of nvml.tsv."""
    return [NvmlSymbol(*row) for row in _rows(text)]


def _tsv(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in (head, *rows))


def _rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()[1:]]
