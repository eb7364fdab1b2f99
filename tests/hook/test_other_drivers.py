"""Which library is the driver: stubs, doors to another library, other directories, or none at all."""

import shutil
from pathlib import Path

import pytest
from c_programs import compiled, driver, library
from hooked_programs import LIMIT, Node

OURS = "libvgpu.so"


def opened(path: Path, variable: str = "cuda") -> str:
    """Code that opens a driver by its path; `cuda` is the one that cuda_calls calls from then on."""
    return f"import cuda_calls\n{variable} = ctypes.CDLL({str(path)!r})\ncuda_calls.cuda = cuda\n"


ALLOCATE_TWICE = "say(init=cuda.cuInit(0), results=[alloc(60)[0], alloc(60)[0]])"


@pytest.fixture
def limited(node: Node) -> dict[str, str]:
    """Settings of a container in which `cuda` names no library until the test says which."""
    return {LIMIT: "100m", "LD_LIBRARY_PATH": str(driver().parent)}


def test_other_entries_to_a_function_are_known_by_what_the_driver_gives(
    node: Node, limited: dict[str, str]
) -> None:
    code = opened(driver("-DENTRIES")) + (
        "asked = [('cuMemAlloc', 12080), ('cuMemAlloc', 14000), ('cuGraphInstantiate', 12000),\n"
        "         ('cuGraphInstantiateWithFlags', 12000)]\n"
        "pointers = [proc_address(*question)[1] for question in asked]\n"
        "same = [looked_up(name, cuda._handle) for name in ('cuMemAlloc_v2', 'cuGraphInstantiateWithFlags')]\n"
        "say(owners=[owner(pointer) for pointer in pointers],\n"
        "    same=[pointers[0] == same[0], pointers[2] == same[1], pointers[3] == same[1]])"
    )
    said = node.run(code, **limited)
    assert said["owners"] == [OURS, "libcuda.so.1", OURS, OURS]  # a later ABI is passed on
    assert said["same"] == [True, True, True]


def test_a_function_of_several_names_is_ours_only_under_a_name_of_ours(
    node: Node, limited: dict[str, str]
) -> None:
    code = opened(driver("-DFOLDED", "-Wl,-Bsymbolic")) + (
        "asked = [proc_address(name, 12080)[1] for name in ('cuMemFree', 'cuArrayDestroy', 'cuGiveBack')]\n"
        "found = [looked_up(name, cuda._handle) for name in ('cuMemFree_v2', 'cuArrayDestroy')]\n"
        "say(owners=[owner(pointer) for pointer in asked], same=[a == b for a, b in zip(asked, found)])"
    )
    said = node.run(code, **limited)
    assert said["owners"] == [OURS, OURS, "libcuda.so.1"]
    assert said["same"] == [True, True]


def test_a_driver_that_looks_itself_up_finds_itself(node: Node, limited: dict[str, str]) -> None:
    """What it then calls is its own business: it must not come back to us."""
    path = driver("-DSELF", "-Wl,-Bsymbolic")
    code = opened(path) + (
        f"init = cuda.cuInit(0)\nfound = cuda.looks_itself_up({str(path)!r}.encode())\n"
        "say(init=init, found=found, mine=owner(looked_up('cuMemAlloc_v2', cuda._handle)))"
    )
    said = node.run(code, **limited)
    assert (said["init"], said["found"], said["mine"]) == (0, 1, OURS)


def test_a_stub_that_was_tried_first_is_not_the_driver_for_good(
    node: Node, limited: dict[str, str]
) -> None:
    code = (
        opened(driver("-DSTUB"), "stub")
        + "stubs = [stub.cuInit(0), stub.cuInit(0)]\n"
        + opened(driver())
        + "say(stub=stubs, init=cuda.cuInit(0), results=[alloc(60)[0], alloc(60)[0]])"
    )
    said = node.run(code, **limited)
    assert (said["stub"], said["init"], said["results"]) == ([34, 34], 0, [0, 2])


def test_another_copy_is_left_alone_once_cuda_has_started(
    node: Node, limited: dict[str, str]
) -> None:
    """Its handles mean nothing to the first one: our functions would mix them up."""
    code = (
        opened(driver())
        + "first = [cuda.cuInit(0), alloc(60)[0]]\n"
        + opened(driver("-DSECOND"), "second")
        + "say(first=first, owner=owner(second.cuMemAlloc_v2), again=alloc(60)[0])"
    )
    said = node.run(code, **limited)
    assert (said["first"], said["owner"], said["again"]) == ([0, 0], "libcuda.so.1", 2)


@pytest.mark.parametrize("macros", [("-DDOOR",), ("-DDOOR", "-DLAZY")], ids=["at once", "lazy"])
def test_a_library_that_forwards_to_the_driver_is_counted_once(
    node: Node, limited: dict[str, str], macros: tuple[str, ...]
) -> None:
    inner = driver("-DINNER_ONE", name="libcuda.so.1.1")
    door = driver(*macros, f'-DINNER="{inner}"')
    code = opened(door) + (
        "say(init=cuda.cuInit(0), results=[alloc(45)[0], alloc(45)[0], alloc(45)[0]],\n"
        "    owner=owner(cuda.cuMemAlloc_v2))"
    )
    said = node.run(code, **limited)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert (said["init"], said["results"], said["owner"]) == (0, [0, 0, 2], OURS)


DIRECT = """
#include <stdio.h>
int cuInit(unsigned), cuMemAlloc_v2(unsigned long long *, unsigned long);
int main(void) {
    unsigned long long address = 0;
    int start = cuInit(0), first = cuMemAlloc_v2(&address, 60 << 20);
    printf("%d %d %d", start, first, cuMemAlloc_v2(&address, 60 << 20));
    return 0;
}
"""


@pytest.mark.parametrize(
    ("macros", "name", "said"),
    [
        pytest.param((), "libcuda.so.1", "0 0 2", id="compat libraries"),
        pytest.param(("-DSTUB",), "libcuda.so.1", "34 34 34", id="a stub"),
        pytest.param((), "libother_cuda.so", "0 0 2", id="a driver of another name"),
    ],
)
def test_a_linked_program_has_the_driver_that_it_was_linked_to(
    node: Node, macros: tuple[str, ...], name: str, said: str
) -> None:
    """And no second one from the search path, which has the simulated driver here."""
    linked = driver(*macros, name=name)
    program = compiled(DIRECT, str(linked))
    search = f"{linked.parent}:{node.sim.libraries}"
    done = node.run_program(
        [str(program)], **{LIMIT: "100m", "LD_BIND_NOW": "1", "LD_LIBRARY_PATH": search}
    )
    assert (done.stdout, done.stderr) == (said, "")


OPENED = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
static void *driver;
static int (*lookup)(const char *, void **, int, unsigned long long, void *);
static void *find(const char *name) {
    void *found = NULL;
    if (!lookup)
        found = dlsym(driver, name);
    else
        lookup(strcmp(name, "cuMemAlloc_v2") ? name : "cuMemAlloc", &found, 12000, 0, NULL);
    return found;
}
int main(int argc, char **argv) {
    int (*init)(unsigned), (*retain)(void **, int), (*enter)(void *);
    int (*allocate)(unsigned long long *, unsigned long);
    unsigned long long address;
    void *context;
    struct rlimit all, none = {4096, 0};
    driver = dlopen(argv[1], RTLD_NOW);
    if (argc > 2 && !strcmp(argv[2], "cuGetProcAddress"))
        *(void **)&lookup = dlsym(driver, "cuGetProcAddress_v2");
    int (*version)(int *), ignored;
    *(void **)&version = dlsym(driver, "cuDriverGetVersion");
    version(&ignored);
    free(malloc(4096)); /* which the loader needs */
    getrlimit(RLIMIT_AS, &all);
    none.rlim_max = all.rlim_max;
    if (argc > 2)
        setrlimit(RLIMIT_AS, &none);
    *(void **)&init = find("cuInit");
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&enter = find("cuCtxSetCurrent");
    *(void **)&allocate = find("cuMemAlloc_v2");
    setrlimit(RLIMIT_AS, &all);
    int start = init(0) | retain(&context, 0) | enter(context), first = allocate(&address, 60 << 20);
    printf("%d %d %d", start, first, allocate(&address, 60 << 20));
    return 0;
}
"""


@pytest.mark.parametrize("how", ["dlsym", "cuGetProcAddress"])
def test_the_limit_holds_for_what_was_found_when_there_was_no_memory(node: Node, how: str) -> None:
    """What could not be noted was given as it is, and the program had that for good."""
    program = [str(compiled(OPENED, "-ldl")), "libcuda.so.1", how]
    done = node.run_program(program, **{LIMIT: "100m"})
    assert (done.stdout, done.stderr) == ("0 0 2", "")


def test_a_driver_that_is_opened_by_a_name_of_another_form_is_one(node: Node) -> None:
    """It says itself what it is."""
    link = node.cache.with_name("cuda-driver.so")
    link.symlink_to(node.sim.libraries / "libcuda.so.1")
    done = node.run_program([str(compiled(OPENED, "-ldl")), str(link)], **{LIMIT: "100m"})
    assert (done.stdout, done.stderr) == ("0 0 2", "")


LAZY_STUBS = """
/* What lets a program start without a driver: some of its functions, each opening it when it is called. */
#include <dlfcn.h>
#include <stddef.h>
static void *drivers(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver ? dlsym(driver, name) : NULL;
}
#define STUB(name, parameters, arguments) \
    int name parameters { \
        static int (*real) parameters; \
        if (!real) \
            *(void **)&real = drivers(#name); \
        return real ? real arguments : 3; \
    }
STUB(cuInit, (unsigned flags), (flags))
#ifdef FEW
STUB(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))
STUB(cuCtxSetCurrent, (void *context), (context))
STUB(cuMemAlloc_v2, (unsigned long long *address, size_t bytes), (address, bytes))
#endif
#ifdef WITH_DEVICE
STUB(cuCtxGetDevice, (int *device), (device))
#endif
"""
STUBBED = """
/* Linked to the stubs, with a library inside (the CUDA runtime) that looks the driver up itself. */
#include <dlfcn.h>
#include <stdio.h>
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int) __attribute__((weak)), cuCtxSetCurrent(void *) __attribute__((weak));
int cuMemAlloc_v2(unsigned long long *, unsigned long) __attribute__((weak));
int main(void) {
    unsigned long long address = 0;
    void *context = NULL, *driver = NULL;
    int (*retain)(void **, int) = cuDevicePrimaryCtxRetain, (*enter)(void *) = cuCtxSetCurrent;
    int (*allocate)(unsigned long long *, unsigned long) = cuMemAlloc_v2, start = cuInit(0);
    for (int round = 0; round < 2; round++) {
        if (INITIALIZED_ALONE || round) {
            driver = dlopen("libcuda.so.1", RTLD_NOW);
            *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
            *(void **)&enter = dlsym(driver, "cuCtxSetCurrent");
            *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
        }
        start |= retain(&context, 0) | enter(context);
        printf("%d %d ", allocate(&address, 40 << 20), allocate(&address, 40 << 20));
    }
    printf("%d", start);
    return 0;
}
"""


@pytest.mark.parametrize(
    ("flags", "alone"),
    [
        pytest.param(("-DFEW",), 0, id="some functions"),
        pytest.param(("-DFEW", "-DWITH_DEVICE"), 0, id="and the device of a context"),
        pytest.param((), 1, id="cuInit alone"),
    ],
)
def test_the_driver_is_what_stubs_of_another_name_have_loaded(
    node: Node, flags: tuple[str, ...], alone: int
) -> None:
    """Else what they lack is lacking for good, and the driver itself is a second one, not limited."""
    stubs = library(LAZY_STUBS, *flags, "-ldl", "-Wl,-soname,libstubs.so", name="libstubs.so")
    program = compiled(STUBBED, f"-DINITIALIZED_ALONE={alone}", str(stubs), "-ldl")
    search = f"{stubs.parent}:{node.sim.libraries}"
    done = node.run_program([str(program)], **{LIMIT: "100m", "LD_LIBRARY_PATH": search})
    assert (done.stdout, done.stderr) == ("0 0 2 2 0", "")


def test_a_driver_that_does_not_tell_the_device_gives_nothing(
    node: Node, limited: dict[str, str]
) -> None:
    said = node.run(opened(driver("-DNOWHERE")) + ALLOCATE_TWICE, **limited)
    assert (said["init"], said["results"]) == (0, [801, 801])


def test_who_catches_an_exception_out_of_the_driver_is_limited(
    node: Node, limited: dict[str, str]
) -> None:
    linked = driver("-DLOUD")
    program = compiled("exceptions.c", str(linked), "-fexceptions", "-lunwind")
    done = node.run_program([str(program)], **limited | {"LD_LIBRARY_PATH": str(linked.parent)})
    assert (done.stdout, done.stderr) == ("0 0 caught 1 2\n", "")


WEAK = """
#include <dlfcn.h>
#include <stdio.h>
#pragma weak cuInit
#pragma weak cuMemAlloc_v2
int cuInit(unsigned), cuMemAlloc_v2(unsigned long long *, unsigned long);
int main(void) {
    unsigned long long address = 0;
    void *found = dlsym(RTLD_DEFAULT, "cuInit");
    printf("%d %d %d %d", found != 0, dlerror() != 0, cuInit(0), cuMemAlloc_v2(&address, 1));
    return 0;
}
"""


def test_without_a_driver_there_is_no_gpu(node: Node, tmp_path: Path) -> None:
    program = compiled(WEAK, "-ldl")
    done = node.run_program([str(program)], **{LIMIT: "1g", "LD_LIBRARY_PATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("0 1 100 3", "")  # not found, dlerror, NO_DEVICE


def test_a_driver_that_is_closed_and_opened_again_is_the_same(node: Node) -> None:
    """As ffmpeg does for each stream: dlopen, dlsym, dlclose."""
    code = (
        "results, seen = [], set()\n"
        "for _ in range(200):\n"
        "    handle = libc.dlopen(b'libcuda.so.1', 2)\n"
        "    seen.add(looked_up('cuMemAlloc_v2', handle))\n"
        "    libc.dlclose(ctypes.c_void_p(handle))\n"
        "start()\n"
        "say(seen=len(seen), results=[alloc(60)[0], alloc(60)[0]])"
    )
    said = node.run("libc.dlopen.restype = ctypes.c_void_p\n" + code, **{LIMIT: "100m"})
    assert (said["seen"], said["results"], said["rc"]) == (1, [0, 2], 0)


def test_a_copy_of_the_driver_under_another_path_is_the_one_that_is_used(
    node: Node, tmp_path: Path
) -> None:
    """A program that opens the compat libraries by path has only them."""
    compat = tmp_path / "compat"
    compat.mkdir()
    shutil.copy(driver(), compat / "libcuda.so.1")
    code = opened(compat / "libcuda.so.1") + (
        "say(init=cuda.cuInit(0), results=[alloc(60)[0], alloc(60)[0]])"
    )
    said = node.run(code, **{LIMIT: "100m"})
    assert (said["init"], said["results"]) == (0, [0, 2])
