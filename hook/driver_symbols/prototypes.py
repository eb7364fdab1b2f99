"""cuda_prototypes.h: the vendor's prototypes of what symbols.h lists, reduced to their types."""

import re
from collections.abc import Iterable, Mapping

from hook.driver_symbols.headers import HeadersError

HEAD = """\
/* Prototypes of the CUDA functions that the hook wraps or calls, and the simulated driver provides.
 *
 * Types only, by the exported name: one without suffix is the first version of its ABI. Written by
 * `python3 build.py cuda-symbols` for the lines of symbols.h.
 */
#ifndef VGPU_CUDA_PROTOTYPES_H
#define VGPU_CUDA_PROTOTYPES_H

#include "cuda_abi.h"
"""
TAIL = "\n#endif\n"
TYPE_WORDS = {*"const unsigned signed int char void long float short struct".split()}  # noqa: SIM905


def parameter_type(parameter: str) -> str:
    """`const char *` of `const char *name`; an array is a pointer, as C has it."""
    array = re.fullmatch(r"(.*\S)\s*\[\w*\]", parameter)
    text = (array[1] if array else parameter).strip()
    found = re.fullmatch(r"(.*[\s*])(\w+)", text)
    words = set(re.findall(r"\w+", found[1])) if found else set()
    if found and found[2] not in TYPE_WORDS and words - {"const", "struct"}:
        text = found[1].strip()
    text += " *" if array else ""
    return re.sub(r"\*\s+\*", "**", re.sub(r"\s*(\*+)\s*", r" \1", text)).strip()


def prototype(symbol: str, parameters: str) -> str:
    """One line of C. Raises HeadersError when the headers give no parameters."""
    if not parameters:
        raise HeadersError(
            f"the vendor's headers have no prototype of {symbol}, which symbols.h lists; "
            "is it spelled as the driver exports it?"
        )
    types = [parameter_type(part) for part in parameters.split(",")]
    return f"CUresult {symbol}({', '.join(types)});"


def write(lists: Mapping[str, Iterable[str]], parameters: Mapping[str, str]) -> str:
    """The text of cuda_prototypes.h, before clang-format. `lists`: title -> symbols."""
    parts = [HEAD]
    for title, symbols in lists.items():
        parts.append(f"\n/* {title} */\n")
        parts += [f"{prototype(symbol, parameters.get(symbol, ''))}\n" for symbol in symbols]
    return "".join([*parts, TAIL])
