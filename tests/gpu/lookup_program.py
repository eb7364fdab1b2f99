"""Run as a program: tell, as one line of JSON, what the driver answers to whoever looks it up.

No GPU is needed: what is asked comes before one. `answers` has for each question the result, the
status and the names of the function that was given (a driver may give one function several names),
or null where it was none; `libraries` has whose the exported functions are.
"""

import ctypes
import json
import sys
from collections import defaultdict
from pathlib import Path

from hook.driver_symbols import generate, tables

VERSIONS = (
    *(2000, 3000, 3020, 4000, 5000, 6000, 6050, 7000, 8000, 9000, 10000, 10020, 11000, 11010),
    *(11020, 11030, 11040, 11060, 11080, 12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080),
    *(12090, 13000, 13010, 13020, 13030, 13040, 14000),
)
FLAGS = (0, 1, 2)  # default, legacy stream, stream per thread


class _Info(ctypes.Structure):
    _fields_ = (("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p))  # fmt: skip


def main() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    loader = ctypes.CDLL(None)
    loader.dlsym.restype, loader.dlsym.argtypes = (
        ctypes.c_void_p,
        (ctypes.c_void_p, ctypes.c_char_p),
    )
    loader.dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Info))
    result = driver.cuInit(0)
    symbols = tables.parse_cuda(generate.CUDA_TSV.read_text())
    names: dict[int, list[str]] = defaultdict(list)
    libraries: dict[str, str] = {}
    info = _Info()
    for symbol in symbols:
        address = loader.dlsym(driver._handle, symbol.symbol.encode())
        if address and loader.dladdr(address, ctypes.byref(info)):
            names[address].append(symbol.symbol)
            libraries[symbol.symbol] = Path(info.file.decode()).name.split(".so")[0]
    answers: dict[str, object] = {}
    for lookup, has_status in (("cuGetProcAddress", False), ("cuGetProcAddress_v2", True)):
        if not hasattr(driver, lookup):
            continue
        ask = getattr(driver, lookup)
        for name in sorted({symbol.name for symbol in symbols}):
            for version in VERSIONS:
                for flags in FLAGS:
                    given, status = ctypes.c_void_p(), ctypes.c_int(-1)
                    words = [name.encode(), ctypes.byref(given), version, ctypes.c_uint64(flags)]
                    words += [ctypes.byref(status)] if has_status else []
                    code = ask(*words)
                    found = names.get(given.value, []) if given.value else None
                    answers[f"{lookup} {name} {version} {flags}"] = (code, status.value, found)
    json.dump({"init": result, "libraries": libraries, "answers": answers}, sys.stdout)


if __name__ == "__main__":
    main()
