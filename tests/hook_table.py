"""What symbols.h says: every function that is intercepted, as the tests of the lookups need it."""

import re
from dataclasses import dataclass

from built_hook import ROOT

HOOK = ROOT / "hook"
FLAGS = {"0": 0, "PER_THREAD": 2}


@dataclass(frozen=True)
class Symbol:
    """One line of the table."""

    name: str
    api_name: str = ""  # in cuGetProcAddress
    since: int = 0
    flags: int = 0


def cuda_symbols(macro: str = "CUDA_SYMBOLS") -> list[Symbol]:
    """The lines of one of CUDA's tables: intercepted by default."""
    rows = re.findall(r'X\((\w+), "(\w+)", (\d+), (\w+)\)', _body(macro))
    assert len(rows) == _body(macro).count("X("), f"{macro} has lines that are not understood"
    return [Symbol(name, api, int(since), FLAGS[flags]) for name, api, since, flags in rows]


def nvml_symbols() -> list[Symbol]:
    """The intercepted functions of NVML."""
    names = re.findall(r"X\((\w+)\)", _body("NVML_SYMBOLS"))
    assert len(names) == _body("NVML_SYMBOLS").count("X(")
    return [Symbol(name) for name in names]


def parameters(name: str) -> list[str]:
    """The types of a CUDA function's parameters, from its prototype."""
    text = re.sub(r"\s+", " ", (HOOK / "cuda_prototypes.h").read_text())
    match = re.search(rf"CUresult {name}\(([^)]*)\);", text)
    assert match is not None, name
    return [one.strip() for one in match[1].split(",") if one.strip() != "void"]


def _body(macro: str) -> str:
    text = (HOOK / "symbols.h").read_text().replace("\\\n", " ")
    match = re.search(rf"^#define {macro}\(X\)(.*)$", text, flags=re.MULTILINE)
    assert match is not None, macro
    return match[1]
