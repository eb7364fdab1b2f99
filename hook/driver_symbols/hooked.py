"""The hook's own table: the lines of symbols.h."""

import re
from dataclasses import dataclass
from pathlib import Path

CUDA_LISTS = {
    "CUDA_SYMBOLS": "intercepted",
    "CUDA_USED": "called by the wrappers",
    "CUDA_SIMULATED": "provided by the simulated driver besides",
}


@dataclass(frozen=True)
class Line:
    """One X(...) of a list in symbols.h; NVML's have a symbol only."""

    symbol: str
    name: str = ""
    since: int = 0
    per_thread: bool = False


def read_list(symbols_h: Path, name: str) -> list[Line]:
    """The lines of one list, e.g. CUDA_SYMBOLS. Raises KeyError when there is none of that name."""
    text = symbols_h.read_text().replace("\\\n", " ")
    found = re.search(rf"^#define {name}\(X\)(.*)$", text, flags=re.MULTILINE)
    if not found:
        raise KeyError(f"{symbols_h.name} has no list {name}")
    body = re.sub(r"/\*.*?\*/", "", found[1])
    lines = []
    for arguments in re.findall(r"X\(([^)]*)\)", body):
        symbol, *rest = [part.strip() for part in arguments.split(",")]
        lines.append(
            Line(symbol, rest[0].strip('"'), int(rest[1]), rest[2] == "PER_THREAD")
            if rest
            else Line(symbol)
        )
    return lines


def intercepted(symbols_h: Path, library: str) -> set[str]:
    """What is hooked of `CUDA` or `NVML`."""
    return {line.symbol for line in read_list(symbols_h, f"{library}_SYMBOLS")}
