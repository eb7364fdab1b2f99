"""docs/hook-symbols.md: what is hooked, what is passed, and what is knowingly ignored."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from hook.driver_symbols import hooked
from hook.driver_symbols.classes import Judged
from hook.driver_symbols.tables import CudaSymbol, NvmlSymbol, split

TITLES = {"cuda": "libcuda", "nvml": "libnvidia-ml (NVML)"}


def write(
    symbols_h: Path,
    cuda: Iterable[CudaSymbol],
    nvml: Iterable[NvmlSymbol],
    judged: Mapping[str, Judged],
) -> str:
    """The page."""
    life = {row.symbol: (row.first, row.gone) for row in cuda}
    life |= {row.symbol: (row.first, row.gone) for row in nvml}
    parts = [_head(life)]
    for library, title in TITLES.items():
        lines = hooked.read_list(symbols_h, f"{library.upper()}_SYMBOLS")
        parts.append(f"\n## {title}: hooked\n\n")
        parts += _hooked(lines, life)
        for kind, heading in (("ignored", "knowingly ignored"), ("passed", "passed through")):
            parts.append(f"\n## {title}: {heading}\n")
            parts += _groups(judged[library], kind)
    return "".join(parts)


def _head(life: Mapping[str, tuple[str, str]]) -> str:
    releases = sorted(
        {first for first, _ in life.values()}, key=lambda text: [int(n) for n in text.split(".")]
    )
    return (
        "# The driver's functions, one by one\n\n"
        f"Read from the vendor's headers of CUDA {releases[0]} to {releases[-1]}, from\n"
        "`hook/symbols.h` and from `hook/driver_symbols/classes.toml`, by\n"
        "`python3 build.py cuda-symbols`. A function is hooked, or passed through because it has\n"
        "no effect on a budget, or ignored although it has one. A test fails when one is in none\n"
        "of these.\n"
    )


def _hooked(lines: Iterable[hooked.Line], life: Mapping[str, tuple[str, str]]) -> Iterable[str]:
    cuda = [line for line in lines if line.name]
    if not cuda:
        yield from (f"- `{line.symbol}`\n" for line in sorted(lines, key=lambda ln: ln.symbol))
        return
    yield "| function | given by cuGetProcAddress for | from version | in CUDA |\n"
    yield "|---|---|---|---|\n"
    for line in sorted(cuda, key=lambda ln: ln.symbol):
        first, gone = life.get(line.symbol, ("?", "-"))
        until = f"{first} or before" if first == "12.0" else first
        until += f", until {gone}" if gone != "-" else ""
        name = f"`{line.name}`" + (", per-thread stream" if line.per_thread else "")
        yield f"| `{line.symbol}` | {name} | {line.since} | {until} |\n"


def _groups(judged: Judged, kind: str) -> Iterable[str]:
    for group, symbols in judged.groups:
        if group.kind == kind:
            families = sorted({split(symbol)[0][0] for symbol in symbols})
            title = f"**{group.budget.capitalize()}.** " if group.budget else ""
            yield f"\n{title}{group.reason}\n\n{', '.join(f'`{name}`' for name in families)}\n"
