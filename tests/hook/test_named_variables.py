"""Libraries that keep the driver's functions in variables of the functions' own names, as slangpy's and old copies of cuew do."""

import pytest
from c_programs import compiled, library
from hooked_programs import LIMIT, Node

KEEPS = """
#include <dlfcn.h>
int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *);
int (*cuMemAlloc_v2)(unsigned long long *, unsigned long);
int (*nvmlInit_v2)(void), (*nvmlDeviceGetHandleByIndex_v2)(unsigned, void **);
int (*nvmlDeviceGetMemoryInfo)(void *, unsigned long long *);
#define KEEP(name) *(void **)&name = dlsym(driver, #name)
#ifdef TABLE
static const struct { void *variable; const char *name; } table[] = {
#define IN(name) {&name, #name}
    IN(cuInit), IN(cuDevicePrimaryCtxRetain), IN(cuCtxSetCurrent), IN(cuMemAlloc_v2)
};
#endif
static int start(void) {
    void *context, *driver = dlopen(CUDA, RTLD_NOW);
#ifdef TABLE
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++)
        *(void **)table[i].variable = dlsym(driver, table[i].name);
#else
    KEEP(cuInit), KEEP(cuDevicePrimaryCtxRetain), KEEP(cuCtxSetCurrent), KEEP(cuMemAlloc_v2);
#endif
    return cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
}
int allocate(unsigned long mib) {
    unsigned long long address;
    static int started;
    int result = started++ ? 0 : start();
    return result ? result : cuMemAlloc_v2(&address, mib << 20);
}
int total_mib(void) {
    void *device, *driver = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned long long memory[3];
    KEEP(nvmlInit_v2), KEEP(nvmlDeviceGetHandleByIndex_v2), KEEP(nvmlDeviceGetMemoryInfo);
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) || nvmlDeviceGetMemoryInfo(device, memory))
        return -1;
    return memory[0] >> 20;
}
"""


@pytest.mark.parametrize(
    ("cuda", "flags"),
    [
        pytest.param("libcuda.so.1", ("-Wl,-z,now", "-Wl,-z,relro"), id="not to be written any more"),
        pytest.param("libcuda.so.1", ("-Wl,-z,lazy", "-Wl,-z,norelro"), id="to be written"),
        pytest.param("libcuda.so.1", ("-DTABLE", "-Wl,-z,relro"), id="in a table"),
        pytest.param("DIRECTORY/libcuda.so.1", (), id="by its path"),
    ],
)  # fmt: skip
def test_a_library_keeps_what_it_finds_where_it_wants_to(
    node: Node, cuda: str, flags: tuple[str, ...]
) -> None:
    """The loader takes our functions for its variables: those cannot be written to."""
    cuda = cuda.replace("DIRECTORY", str(node.sim.libraries))
    keeps = library(KEEPS, f'-DCUDA="{cuda}"', "-ldl", *flags, name="libkeeps.so")
    said = node.run(
        f"keeps = ctypes.CDLL({str(keeps)!r})\n"
        "say(results=[keeps.allocate(60), keeps.allocate(60)], total=keeps.total_mib())",
        **{LIMIT: "100m"},
    )
    assert (said["rc"], said["stderr"]) == (0, "")
    assert (said["results"], said["total"]) == ([0, 2], 100)


# Another one that calls by those variables, when the first has filled them.
CALLS = """
#include <stdio.h>
extern int (*cuMemAlloc_v2)(unsigned long long *, unsigned long);
int allocate(unsigned long mib);
int again(unsigned long mib) {
    unsigned long long address;
    int result = allocate(mib);
    return result ? result : cuMemAlloc_v2(&address, mib << 20);
}
int main(void) { printf("%d", again(40)); printf(" %d", again(40)); return 0; }
"""


def test_a_library_that_calls_by_anothers_variables_has_those(node: Node) -> None:
    keeps = library(KEEPS, '-DCUDA="libcuda.so.1"', "-ldl", name="libkeeps.so")
    calls = library(CALLS, str(keeps), f"-Wl,-rpath,{keeps.parent}", name="libcalls.so")
    said = node.run(
        f"calls = ctypes.CDLL({str(calls)!r})\nsay(results=[calls.again(40), calls.again(40)])",
        **{LIMIT: "100m"},
    )
    assert (said["rc"], said["results"], said["stderr"]) == (0, [0, 2], "")


def test_a_program_is_linked_to_such_a_library(node: Node) -> None:
    """What everybody finds by the name of an NVML function was called then, and was a variable."""
    keeps = library(KEEPS, '-DCUDA="libcuda.so.1"', "-ldl", name="libkeeps.so")
    program = compiled(CALLS, str(keeps), f"-Wl,-rpath,{keeps.parent}")
    done = node.run_program([str(program)], **{LIMIT: "100m"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 2", "")
