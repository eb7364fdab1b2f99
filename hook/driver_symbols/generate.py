"""Everything that is written from the vendor's headers, and whether it agrees with symbols.h.

Also a program, for the environment that has the compiler: `python -m hook.driver_symbols.generate`.
"""

import argparse
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from hook.driver_symbols import classes, headers, hooked, page, prototypes, tables
from hook.driver_symbols.headers import HeadersError
from hook.driver_symbols.tables import CudaSymbol, Declared, NvmlSymbol

HERE = Path(__file__).resolve().parent
HOOK = HERE.parent
ROOT = HOOK.parent
LOCK = ROOT / "requirements" / "cuda-headers.lock"
FETCHED = ROOT / ".build" / "cuda-headers"
SYMBOLS_H = HOOK / "symbols.h"
CLASSES = HERE / "classes.toml"
CUDA_TSV, NVML_TSV = HERE / "cuda.tsv", HERE / "nvml.tsv"
PROTOTYPES = HOOK / "cuda_prototypes.h"
PAGE = ROOT / "docs" / "hook-symbols.md"


@dataclass(frozen=True)
class Vendor:
    """What the headers of all releases say."""

    cuda: tuple[CudaSymbol, ...]
    nvml: tuple[NvmlSymbol, ...]
    parameters: dict[str, str]  # of each CUDA function, as its newest header has them


def read_vendor(python: str = sys.executable) -> Vendor:
    """Fetch the headers unless they are here, and read them. Raises HeadersError."""
    directories = headers.fetch(LOCK, FETCHED, python)
    stand_ins = headers.stand_ins(FETCHED)
    cuda: dict[headers.Release, Declared] = {}
    nvml: dict[headers.Release, set[str]] = {}
    parameters: dict[str, str] = {}
    for release, directory in directories.items():
        cuda[release] = tables.read_cuda(python, directory, stand_ins)
        nvml[release] = tables.read_nvml(python, directory)
        parameters |= cuda[release].functions
    return Vendor(tuple(tables.cuda_table(cuda)), tuple(tables.nvml_table(nvml)), parameters)


def outputs(vendor: Vendor) -> dict[Path, str]:
    """The files that follow from the headers, symbols.h and classes.toml. Raises HeadersError."""
    lists = {
        title: [line.symbol for line in hooked.read_list(SYMBOLS_H, name)]
        for name, title in hooked.CUDA_LISTS.items()
    }
    judged = {library: judge(library, names) for library, names in _names(vendor).items()}
    return {
        CUDA_TSV: tables.write_cuda(vendor.cuda),
        NVML_TSV: tables.write_nvml(vendor.nvml),
        PROTOTYPES: formatted(prototypes.write(lists, vendor.parameters)),
        PAGE: page.write(SYMBOLS_H, vendor.cuda, vendor.nvml, judged),
    }


def judge(library: str, symbols: Iterable[str]) -> classes.Judged:
    """The class of each symbol of `cuda` or `nvml`, and what is wrong."""
    hooks = hooked.intercepted(SYMBOLS_H, library.upper())
    return classes.judge(symbols, hooks, classes.read_groups(CLASSES, library))


def disagreements(lines: Iterable[hooked.Line], table: Collection[CudaSymbol]) -> list[str]:
    """Where symbols.h tells cuGetProcAddress something else than the headers do, in sentences."""
    rows = {row.symbol: row for row in table}
    found = []
    for line in lines:
        row = rows.get(line.symbol)
        if row is None:
            found.append(f"{line.symbol} in symbols.h is no function of the driver")
        elif (row.name, row.since, row.per_thread) != (line.name, line.since, line.per_thread):
            flags = "PER_THREAD" if row.per_thread else "0"
            found.append(
                f'write X({row.symbol}, "{row.name}", {row.since}, {flags}) in symbols.h: '
                "that is what the vendor's headers say"
            )
    return found


def formatted(c_text: str) -> str:
    """C in the house's format, by the clang-format beside this Python."""
    command = [str(Path(sys.executable).parent / "clang-format"), "--assume-filename"]
    return subprocess.run(  # noqa: S603 - of our own environment
        [*command, str(PROTOTYPES)], input=c_text, capture_output=True, text=True, check=True
    ).stdout


def problems(vendor: Vendor) -> list[str]:
    """Everything that a person has to mend, in sentences."""
    lines = [ln for name in hooked.CUDA_LISTS for ln in hooked.read_list(SYMBOLS_H, name)]
    found = disagreements(lines, vendor.cuda)
    for library, names in _names(vendor).items():
        found += judge(library, names).problems
    return found


def _names(vendor: Vendor) -> dict[str, list[str]]:
    return {
        "cuda": [row.symbol for row in vendor.cuda],
        "nvml": [row.symbol for row in vendor.nvml],
    }


def main(argv: list[str]) -> int:
    """Write the files; say what changed and what is left to do."""
    parser = argparse.ArgumentParser(prog="build.py cuda-symbols")
    parser.add_argument("release", nargs="?", help="a CUDA release to pin first, e.g. 13.6")
    chosen = parser.parse_args(argv)
    try:
        if chosen.release:
            headers.add_pins(LOCK, headers.release_of(chosen.release), sys.executable)
        vendor = read_vendor()
        for path, text in outputs(vendor).items():
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                print(f"wrote {path.relative_to(ROOT)}")
    except HeadersError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    left = problems(vendor)
    for sentence in left:
        print(sentence, file=sys.stderr)
    print(f"{len(vendor.cuda)} functions of libcuda, {len(vendor.nvml)} of libnvidia-ml")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
