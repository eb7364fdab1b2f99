"""Other libraries that take functions' places, before and behind us in the search order."""

from pathlib import Path

import pytest
from built_hook import built
from c_programs import compiled, library
from hooked_programs import LIMIT, Node

COUNT = "calls = ctypes.c_int.in_dll(ctypes.CDLL(INTERPOSER), 'interposer_calls').value\n"
ALLOCATE = "start()\nresults = [alloc(60)[0], alloc(60)[0]]\n"


def preload(interposer: Path, *, first: bool) -> str:
    """LD_PRELOAD with us behind or before it."""
    both = [str(interposer), str(built() / "libvgpu.so")]
    return ":".join(both if first else reversed(both))


@pytest.mark.parametrize("first", [True, False], ids=["before us", "behind us"])
@pytest.mark.parametrize(
    ("macro", "least"),
    [
        pytest.param("DLSYM", 1, id="dlsym, found by version"),
        pytest.param("CUDA", 0, id="a profiler of cuMemAlloc"),
        pytest.param("WALK", 0, id="dl_iterate_phdr"),
        pytest.param("MALLOC", 1, id="calloc"),
        pytest.param("EARLY", 0, id="constructor and destructor"),
    ],
)
def test_the_limit_holds_and_nobody_calls_in_circles(
    node: Node, macro: str, least: int, first: bool
) -> None:
    interposer = library("interposer.c", f"-D{macro}", "-ldl", name="libinterposer.so")
    code = f"INTERPOSER = {str(interposer)!r}\n{ALLOCATE}{COUNT}say(results=results, calls=calls)"
    said = node.run(code, **{LIMIT: "100m", "LD_PRELOAD": preload(interposer, first=first)})
    assert (said["rc"], said["stderr"], said["results"]) == (0, "", [0, 2])
    if first:
        assert said["calls"] >= least


DIRECT = """
#include <dlfcn.h>
#include <stdio.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int main(void) {
    void *context; unsigned long long address = 0;
    int start = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
    int first = cuMemAlloc_v2(&address, 60 << 20), second = cuMemAlloc_v2(&address, 60 << 20);
    int *calls = dlsym(RTLD_DEFAULT, "interposer_calls");
    printf("%d %d %d, %d seen\\n", start, first, second, *calls);
    return 0;
}
"""


@pytest.mark.parametrize(
    ("first", "seen"),
    [
        pytest.param(True, 2, id="before us, as all are under /etc/ld.so.preload"),
        pytest.param(False, 0, id="behind us, where it is passed by"),
    ],
)
def test_a_linked_program_under_a_profiler_is_limited(node: Node, first: bool, seen: int) -> None:
    interposer = library("interposer.c", "-DCUDA", "-ldl", name="libprofiler.so")
    program = compiled(DIRECT, str(node.sim.libraries / "libcuda.so.1"), "-ldl")
    done = node.run_program(
        [str(program)], **{LIMIT: "100m", "LD_PRELOAD": preload(interposer, first=first)}
    )
    assert (done.stdout, done.stderr) == (f"0 0 2, {seen} seen\n", "")
