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
        pytest.param("DLOPEN", 1, id="dlopen, which looks CUDA up"),
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


ALLOCATES = """
start()
interposer = ctypes.CDLL(INTERPOSER)
how = ctypes.c_void_p.in_dll(interposer, 'interposer_allocates')
how.value = ctypes.cast(cuda.cuMemAlloc_v2, ctypes.c_void_p).value
say(results=[alloc(1)[0] for _ in range(3000)])
"""


def test_who_allocates_in_mmap_is_not_waited_for_by_itself(node: Node) -> None:
    """3000 allocations need more room for notes than is there, which is mapped with a lock held."""
    interposer = library("interposer.c", "-DMMAP", "-ldl", name="libinterposer.so")
    code = f"INTERPOSER = {str(interposer)!r}\n{ALLOCATES}"
    said = node.run(code, **{LIMIT: "4g", "LD_PRELOAD": preload(interposer, first=True)})
    assert (said["rc"], said["stderr"], said["results"]) == (0, "", [0] * 3000)


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


CACHED = """
/* A program that has the list of libraries by heart, so that its exceptions do not take the loader's lock. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
typedef int look(struct dl_phdr_info *, size_t, void *);
static struct dl_phdr_info known[256];
static int count;
static int keep(struct dl_phdr_info *library, size_t size, void *nothing) {
    known[count++] = *library;
    return nothing || size < sizeof *library || count == 256;
}
int dl_iterate_phdr(look *each, void *context) {
    int said = 0;
    for (int i = 0; i < count && !said; i++)
        said = each(&known[i], sizeof known[i], context);
    return said;
}
int main(void) {
    int (*walk)(look *, void *), (*init)(unsigned), (*retain)(void **, int), (*enter)(void *);
    int (*allocate)(unsigned long long *, unsigned long);
    *(void **)&walk = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    walk(keep, NULL);
    void *context, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&enter = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&allocate = dlsym(driver, "cuMemAlloc_v2");
    unsigned long long address;
    int start = init(0) | retain(&context, 0) | enter(context);
    int first = allocate(&address, 60 << 20), second = allocate(&address, 60 << 20);
    printf("%d %d %d", start, first, second);
    return 0;
}
"""


def test_a_program_with_a_list_of_the_libraries_of_its_own_is_limited(node: Node) -> None:
    """It lacks the driver, which the program opens later."""
    done = node.run_program([str(compiled(CACHED, "-rdynamic", "-ldl"))], **{LIMIT: "100m"})
    assert (done.stdout, done.stderr) == ("0 0 2", "")


PLUGIN = """
#include <dlfcn.h>
void *next(const char *name) { void *volatile found = dlsym(RTLD_NEXT, name); return found; }
#ifdef WRAPS
int wrapped;
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) {
    int (*real)(unsigned long long *, unsigned long);
    *(void **)&real = next("cuMemAlloc_v2");
    return ++wrapped > 100 ? 77 : real ? real(address, bytes) : 78;
}
#endif
"""
MOCK = "int cuMemAlloc_v2(void) {\n return 77; }\n"
GROUP = "int group(void) {\n return 1; }\n"
LINKED = "-Wl,--no-as-needed"


def opened_after_the_driver(plugin: Path, *before: Path) -> str:
    """Code whose `plugin` was opened when all that it is linked to was there."""
    paths = [str(path) for path in (*before, plugin)]
    return f"plugin = [ctypes.CDLL(path) for path in {paths!r}][-1]\nplugin.next.restype = ctypes.c_void_p\n"


@pytest.mark.parametrize("flags", [(), ("-DWRAPS",)], ids=["asks", "wraps it too"])
@pytest.mark.parametrize("linked", ["itself", "by who opens it"])
def test_a_plugin_that_came_after_the_driver_finds_ours_next(
    node: Node, flags: tuple[str, ...], linked: str
) -> None:
    """Libc then looks through what was opened together, and finds the driver although it was there before."""
    driver = str(node.sim.libraries / "libcuda.so.1")
    plugin = library(PLUGIN, *flags, "-ldl", *([LINKED, driver] if linked == "itself" else []),
                     name="libplugin.so")  # fmt: skip
    opened = plugin
    if linked != "itself":
        opened = library(GROUP, LINKED, str(plugin), driver, f"-Wl,-rpath,{plugin.parent}",
                         name="libgroup.so")  # fmt: skip
    code = opened_after_the_driver(opened) + (
        "start()\nfound = plugin.next(b'cuMemAlloc_v2')\naddress = ctypes.c_uint64()\n"
        "call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(found)\n"
        "say(owner=owner(found), nobody=plugin.next(b'cuNothing_v9'),\n"
        "    results=[call(ctypes.byref(address), 60 << 20) for _ in range(2)])"
    )
    said = node.run(code, **{LIMIT: "100m"})
    assert (said["rc"], said["stderr"], said["nobody"]) == (0, "", None)
    assert (said["owner"], said["results"]) == ("libvgpu.so", [0, 2])


def test_calls_through_a_plugin_that_wraps_are_seen_and_limited(node: Node) -> None:
    plugin = library(PLUGIN, "-DWRAPS", "-ldl", LINKED, str(node.sim.libraries / "libcuda.so.1"),
                     name="libplugin.so")  # fmt: skip
    code = opened_after_the_driver(plugin) + (
        "start()\naddress = ctypes.c_uint64()\nsize = ctypes.c_size_t(60 << 20)\n"
        "results = [plugin.cuMemAlloc_v2(ctypes.byref(address), size) for _ in range(2)]\n"
        "say(results=results, wrapped=ctypes.c_int.in_dll(plugin, 'wrapped').value)"
    )
    said = node.run(code, **{LIMIT: "100m"})
    assert (said["rc"], said["results"], said["wrapped"]) == (0, [0, 2], 2)


def test_what_a_plugin_finds_next_in_another_library_stays_that_ones(node: Node) -> None:
    """A mock that was there before it, and stands before the driver in what it is linked to."""
    mock = library(MOCK, name="libmock.so")
    driver = str(node.sim.libraries / "libcuda.so.1")
    plugin = library(PLUGIN, "-ldl", LINKED, str(mock), driver, f"-Wl,-rpath,{mock.parent}",
                     name="libplugin.so")  # fmt: skip
    code = opened_after_the_driver(plugin, mock) + "say(owner=owner(plugin.next(b'cuMemAlloc_v2')))"
    assert node.run(code, **{LIMIT: "100m"})["owner"] == "libmock.so"


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_what_stands_before_the_driver_stays_next_however_its_names_are_found(
    node: Node, style: str
) -> None:
    """A library of an old linker, or of another, has no table but the first kind."""
    mock = library(MOCK, f"-Wl,--hash-style={style}", name="libmock.so")
    driver = str(node.sim.libraries / "libcuda.so.1")
    behind = library("find.c", "-DLIBRARY", LINKED, str(mock), driver, name="libbehind.so")
    paths = ":".join(map(str, (node.sim.libraries, behind.parent, mock.parent)))
    words = [str(compiled("find.c", "-ldl")), "behind", "cuMemAlloc_v2"]
    done = node.run_program(words, **{LIMIT: "100m", "LD_LIBRARY_PATH": paths})
    assert (done.stdout, done.stderr) == ("cuMemAlloc_v2 libmock.so -\n", "")


def test_a_second_driver_that_asks_for_the_first_is_not_sent_back_to_us(node: Node) -> None:
    """A program may come to use it as its driver: then each would call the other."""
    first = str(node.sim.libraries / "libcuda.so.1")
    second = library(PLUGIN, "-ldl", LINKED, first, name="libcuda.so.2")
    code = opened_after_the_driver(second) + (
        "looked_up('cuInit', None)\nsay(owner=owner(plugin.next(b'cuMemAlloc_v2')))"
    )
    assert node.run(code, **{LIMIT: "100m"})["owner"] == "libcuda.so.1"


def test_a_plugin_that_has_asked_can_still_be_closed(node: Node) -> None:
    plugin = library(PLUGIN, "-ldl", LINKED, str(node.sim.libraries / "libcuda.so.1"),
                     name="libplugin.so")  # fmt: skip
    code = opened_after_the_driver(plugin) + (
        "found = owner(plugin.next(b'cuMemAlloc_v2'))\nimport _ctypes\n"
        "_ctypes.dlclose(plugin._handle)\n"
        "say(found=found, there=open('/proc/self/maps').read().count('libplugin.so'))"
    )
    said = node.run(code, **{LIMIT: "100m"})
    assert (said["found"], said["there"]) == ("libvgpu.so", 0)
