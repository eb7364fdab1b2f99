"""Every function of the table, by every way that a program can come to it, with and without us."""

import functools
import json
import subprocess
from typing import Any

import pytest
from built_hook import built, sim_libraries
from c_programs import compiled, library
from elf import read_elf
from hook_table import Symbol, cuda_symbols, nvml_symbols
from hooked_programs import Node

CUDA, NVML, OURS = "libcuda.so.1", "libnvidia-ml.so.1", "libvgpu.so"
NOT_OURS = ("cuCtxGetDevice", "cuNothing", "cudaMalloc", "nvmlNothing", "qsort")


def offered(symbols: list[Symbol], file: str) -> list[Symbol]:
    """Those that the simulated driver has."""
    exports = read_elf(sim_libraries() / file).exports
    return [symbol for symbol in symbols if symbol.name in exports]


@functools.cache
def find(route: str, *, hook: bool) -> dict[str, tuple[str, str]]:
    """Where each name is found by one route, and whether dlerror has something to say."""
    drivers = [str(sim_libraries() / file) for file in (CUDA, NVML)]
    behind = library("find.c", "-DLIBRARY", "-Wl,--no-as-needed", *drivers, name="libbehind.so")
    names = [s.name for s in cuda_symbols() + nvml_symbols()] + list(NOT_OURS)
    env = {"LD_LIBRARY_PATH": f"{sim_libraries()}:{behind.parent}"}
    if hook:
        env["LD_PRELOAD"] = str(built() / OURS)
    done = subprocess.run(
        [str(compiled("find.c", "-ldl")), route, *names],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return {name: (where, error) for name, where, error in map(str.split, done.stdout.splitlines())}


@pytest.mark.parametrize(
    "route",
    [
        pytest.param("handle", id="dlsym with the driver's handle"),
        pytest.param("default", id="RTLD_DEFAULT"),
        pytest.param("program", id="the handle of the program"),
        pytest.param("next", id="RTLD_NEXT before us"),
        pytest.param("behind", id="RTLD_NEXT behind us"),
    ],
)
def test_every_function_of_the_table_is_ours_and_no_other(route: str) -> None:
    with_us, without = find(route, hook=True), find(route, hook=False)
    ours = {s.name for s in offered(cuda_symbols(), CUDA) + offered(nvml_symbols(), NVML)}
    assert ours == {s.name for s in cuda_symbols() + nvml_symbols()}, "the whole table is tried"
    assert {name for name, (where, _) in with_us.items() if where == OURS} == ours
    assert {name for name, (where, _) in without.items() if where in {CUDA, NVML}} >= ours
    others = set(with_us) - ours
    assert {name: with_us[name] for name in others} == {name: without[name] for name in others}
    assert [with_us[name][1] for name in ours] == [without[name][1] for name in ours]  # dlerror


def test_a_version_that_the_driver_has_not_got_is_not_found_with_us_either() -> None:
    assert find("version", hook=True) == find("version", hook=False)


ASK = """
import sys
names, versions, flags = json.loads(sys.stdin.readline())
mine = ctypes.CDLL(os.environ["MINE"]) if "MINE" in os.environ else cuda
answers, where = {}, {}
for name in names["symbols"]:
    for library in (cuda, mine):
        if looked_up(name, library._handle):
            where.setdefault(looked_up(name, library._handle), set()).add(name)
for function in ("", "_v2"):
    for name in names["api"]:
        for version in versions + [names["since"][name] - 1, names["since"][name]]:
            for flag in flags:
                pointer, status = ctypes.c_void_p(0x77), ctypes.c_int(-1)
                more = [ctypes.byref(status)] if function else []
                result = getattr(cuda, "cuGetProcAddress" + function)(
                    name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flag), *more)
                key = f"{name} {version} {flag} {function}"
                answers[key] = [result, status.value, sorted(where.get(pointer.value, ["?"])),
                                owner(pointer.value or 0)]
say(answers=answers)
"""


def test_cugetprocaddress_answers_as_the_driver_does_with_our_functions_for_the_table(
    node: Node,
) -> None:
    """Every name, in versions before, at and behind the one that brought it, with every flag."""
    macros = ("CUDA_SYMBOLS", "CUDA_USED", "CUDA_SIMULATED")
    rows = offered([row for macro in macros for row in cuda_symbols(macro)], CUDA)
    table = {row.name for row in cuda_symbols()}
    since = {row.api_name: row.since for row in rows} | {"cuNothing": 2000}
    names = {"symbols": [row.name for row in rows], "api": list(since), "since": since}
    versions = [2000, 3020, 7000, 11040, 12000, 12080, 13000, 13050, 99990]
    question = json.dumps([names, versions, [0, 1, 2]])
    answers = [_answers(node, question, hook=hook) for hook in (False, True)]
    replaced = 0
    for key, (result, status, symbols, where) in answers[0].items():
        now = answers[1][key]
        assert now[:2] == [result, status], key
        api_name = key.split(maxsplit=1)[0]
        same_api = [row.name for row in rows if row.api_name == api_name and row.name in symbols]
        if set(same_api) & table:
            assert (now[3], set(now[2]) & set(same_api)) == (OURS, set(now[2])), key
            replaced += 1
        else:  # what the driver does not support may all be one function to it
            assert (now[3], set(now[2])) == (where, set(symbols) - table), key
    assert replaced > 500


def _answers(node: Node, question: str, *, hook: bool) -> dict[str, list[Any]]:
    env = {"MINE": str(built() / OURS)} if hook else {}
    process = node.start("import os\n" + ASK, hook=hook, env=env)
    out, err = process.communicate(question + "\n", timeout=250)
    assert (process.returncode, err) == (0, "")
    answers: dict[str, list[Any]] = json.loads(out)["answers"]
    return answers
