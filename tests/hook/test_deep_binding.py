"""Libraries that are opened with RTLD_DEEPBIND, as Taichi's and Dr.Jit's are: what the loader gives them before us."""

from pathlib import Path

import pytest
from built_hook import built
from c_programs import compiled, driver, library
from hooked_programs import LIMIT, Node

OUTER = """
#include <dlfcn.h>
int looked_up(void);
int of_another(void) { return looked_up(); }
int opens(void) { /* deep itself, it opens the next one so */
    int (*function)(void);
    *(void **)&function = dlsym(dlopen(PLUGIN, RTLD_LAZY | RTLD_DEEPBIND), "looked_up");
    return function();
}
"""
AGAIN = """
#include <dlfcn.h>
int again(void) {
    int gave = -1;
    for (int i = 0; i < 4; i++) { /* the driver stays from the first; then each takes the place of the one before */
        void *library = dlopen(PLUGIN, RTLD_NOW | RTLD_DEEPBIND);
        int (*function)(void);
        *(void **)&function = dlsym(library, "linked");
        gave = function();
        dlclose(library);
    }
    return gave;
}
"""
OUT_OF_MEMORY = 2


@pytest.fixture
def limited(node: Node) -> dict[str, str]:
    return {LIMIT: "100m", "LD_LIBRARY_PATH": str(driver().parent)}


def plugin(*flags: str) -> Path:
    """A library that allocates."""
    return library("deep_plugin.c", str(driver()), "-ldl", *flags, name="libplugin.so")


def said(
    node: Node, limited: dict[str, str], opened: Path, function: str, when: str = "now"
) -> str:
    """What a function of the library gives, opened deep."""
    program = compiled("deep.c", "-ldl", "-rdynamic")
    done = node.run_program([str(program), when, str(opened), function], **limited)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize("function", ["linked", "pointed_to", "looked_up", "by_version"])
@pytest.mark.parametrize(
    ("when", "flags"),
    [
        pytest.param(
            "now", ("-Wl,-z,now", "-Wl,-z,relro"), id="bound at once, not to be written any more"
        ),
        pytest.param("now", ("-Wl,-z,norelro",), id="bound at once"),
        pytest.param("lazy", ("-Wl,-z,lazy",), id="bound at the first call"),
        pytest.param("lazy", ("-Wl,-z,lazy", "-fno-plt"), id="without jumps"),
    ],
)
def test_a_library_that_is_opened_deep_is_limited(
    node: Node, limited: dict[str, str], function: str, when: str, flags: tuple[str, ...]
) -> None:
    assert said(node, limited, plugin(*flags), function, when) == str(OUT_OF_MEMORY)


@pytest.mark.parametrize("function", ["of_another", "opens"])
def test_so_are_those_that_come_with_it_or_that_it_opens(
    node: Node, limited: dict[str, str], function: str
) -> None:
    inner = plugin()
    outer = library(OUTER, f'-DPLUGIN="{inner}"', str(inner), "-ldl", name="libouter.so")
    assert said(node, limited, outer, function) == str(OUT_OF_MEMORY)


def test_one_of_many_that_come_and_go_is_limited(node: Node, limited: dict[str, str]) -> None:
    """Each is looked at once: which ones are new is told by how many there are."""
    plugins = [plugin(f"-DNUMBER={i}") for i in range(4)]
    code = (
        f"import os\nplugins = {[str(path) for path in plugins]}\n"
        "deep = os.RTLD_LAZY | os.RTLD_DEEPBIND\n"
        "libc.dlclose(ctypes.c_void_p(ctypes.CDLL(plugins[0])._handle))\n"
        "first = ctypes.CDLL(plugins[1], mode=deep)\n"
        "first.linked\n"
        "libc.dlclose(ctypes.c_void_p(first._handle))\n"
        "ctypes.CDLL(plugins[2])\n"
        "say(result=ctypes.CDLL(plugins[3], mode=deep).linked())"
    )
    assert node.run(code, **limited)["result"] == OUT_OF_MEMORY


def test_one_is_limited_whoever_uses_it(node: Node, limited: dict[str, str]) -> None:
    """Another thread than the one that opened it."""
    code = (
        f"path = {str(plugin())!r}\n"
        "deep = ctypes.CDLL(None).dlopen\n"
        "deep.argtypes = ctypes.c_char_p, ctypes.c_int\n"
        "words = path.encode(), os.RTLD_NOW | os.RTLD_DEEPBIND\n"
        "opening = threading.Thread(target=deep, args=words)\n"
        "opening.start()\n"
        "opening.join()\n"
        "say(result=ctypes.CDLL(path).linked())"
    )
    assert node.run("import os, threading\n" + code, **limited)["result"] == OUT_OF_MEMORY


def test_two_that_are_opened_one_after_the_other_are_limited(
    node: Node, limited: dict[str, str]
) -> None:
    first, second = (str(plugin(f"-DNUMBER={i}")) for i in range(2))
    code = (
        "import os\ndeep = ctypes.CDLL(None).dlopen\ndeep.restype = ctypes.c_void_p\n"
        f"handles = [deep(path, os.RTLD_NOW | os.RTLD_DEEPBIND) for path in ({first.encode()}, {second.encode()})]\n"
        "say(result=[ctypes.CDLL(None, handle=handle).linked() for handle in handles])"
    )
    assert node.run(code, **limited)["result"] == [OUT_OF_MEMORY, OUT_OF_MEMORY]


@pytest.mark.parametrize("deep", [False, True], ids=["by the program", "by one opened deep"])
def test_one_that_is_opened_again_is_limited_again(
    node: Node, limited: dict[str, str], deep: bool
) -> None:
    """Where it lay the first time, and the loader keeps its word of it where that was, too."""
    opener = library(AGAIN, f'-DPLUGIN="{plugin()}"', "-ldl", name="libopener.so")
    mode = "os.RTLD_NOW | os.RTLD_DEEPBIND" if deep else "os.RTLD_NOW"
    code = f"import os\nsay(result=ctypes.CDLL({str(opener)!r}, mode={mode}).again())"
    assert node.run(code, **limited)["result"] == OUT_OF_MEMORY


def test_who_looks_up_waits_for_nobody_who_walks_over_the_libraries(
    node: Node, limited: dict[str, str]
) -> None:
    """Libc's dlsym does not: who waits may hold what the other one needs, and a child of fork waits for good."""
    program = compiled("deep_walk.c", "-ldl", "-lpthread", "-rdynamic")
    done = node.run_program([str(program), str(plugin()), "linked"], **limited)
    assert (done.returncode, done.stdout) == (0, f"{OUT_OF_MEMORY}\n")


CONSTANTS = """
#include <dlfcn.h>
int cuInit(unsigned);
void *(*const lookup)(void *, const char *) = dlsym;
char *const inside = (char *)cuInit + 1;
"""


def test_what_was_not_to_be_written_to_is_not_afterwards(
    node: Node, limited: dict[str, str]
) -> None:
    opened = library(CONSTANTS, str(driver()), "-ldl", "-Wl,-z,relro", name="libconstants.so")
    code = (
        f"import os\nlibrary = ctypes.CDLL({str(opened)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)\n"
        "place = ctypes.c_void_p.in_dll(library, 'lookup')\n"
        "ours = ctypes.cast(ctypes.CDLL(None).dlsym, ctypes.c_void_p).value\n"
        "ends = [(line.split()[0].split('-'), line.split()[1]) for line in open('/proc/self/maps')]\n"
        "may = [may for (low, high), may in ends if int(low, 16) <= ctypes.addressof(place) < int(high, 16)]\n"
        "say(may=may, is_ours=place.value == ours)"
    )
    done = node.run(code, **limited)
    assert (done["may"], done["is_ours"]) == (["r--p"], True)


def test_a_pointer_into_a_function_stays(node: Node, limited: dict[str, str]) -> None:
    opened = library(CONSTANTS, str(driver()), "-ldl", name="libconstants.so")
    code = (
        f"import os\nlibrary = ctypes.CDLL({str(opened)!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND)\n"
        "low = min(int(line.split('-')[0], 16) for line in open('/proc/self/maps') if 'libcuda' in line)\n"
        "high = max(int(line.split('-')[1].split()[0], 16) for line in open('/proc/self/maps') if 'libcuda' in line)\n"
        "say(is_drivers=low <= ctypes.c_void_p.in_dll(library, 'inside').value < high)"
    )
    assert node.run(code, **limited)["is_drivers"]


PASSES_ON = """
#include <dlfcn.h>
#include <stdio.h>
void *dlopen(const char *file, int flags) {
    void *(*next)(const char *, int);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    printf("%s ", WHO);
    fflush(stdout);
    return next(file, flags);
}
"""


def test_others_that_take_dlopen_over_are_called_each_once(
    node: Node, limited: dict[str, str]
) -> None:
    before, behind = (
        library(PASSES_ON, f'-DWHO="{who}"', "-ldl", name="libother.so")
        for who in ("before", "behind")
    )
    limited["LD_PRELOAD"] = f"{before}:{built() / 'libvgpu.so'}:{behind}"
    assert said(node, limited, plugin(), "linked") == f"before behind {OUT_OF_MEMORY}"


def test_what_is_not_limited_is_documented(node: Node, limited: dict[str, str]) -> None:
    """A constructor runs before anybody looks anything up."""
    assert said(node, limited, plugin("-DEARLY=1"), "constructed") == "0"
    assert said(node, limited, plugin("-DEARLY=1"), "linked") == str(OUT_OF_MEMORY)


WRAPS = """
void *dlopen(const char *file, int flags) { return (void *)1; }
void *dlsym(void *handle, const char *name) { return handle; }
int cuInit(unsigned flags) { return 40; }
"""
WRAPPED = """
#include <dlfcn.h>
int cuInit(unsigned);
int outer(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    return cuInit(0) + (library == (void *)1) + (dlsym(library, "cuInit") == library);
}
"""


@pytest.mark.parametrize("when", ["now", "lazy"])
def test_what_others_define_that_come_with_it_is_theirs(
    node: Node, limited: dict[str, str], when: str
) -> None:
    """To keep those is what the flag is for."""
    theirs = library(WRAPS, name="libwraps.so")
    opened = library(
        WRAPPED, str(theirs), str(driver()), "-ldl", f"-Wl,-z,{when}", name="libwrapped.so"
    )
    assert said(node, limited, opened, "outer", when) == "42"


TAKES_OVER = """
#include <dlfcn.h>
#include <stddef.h>
#define TAKE(name, given, passed) void *name given { \\
    KEPT void *(*next) given; \\
    if (!FIRST || !next) *(void **)&next = dlsym(RTLD_NEXT, #name); \\
    return next passed; }
#if FIRST
#define KEPT static
#else
#define KEPT
#endif
#ifdef OPENING
TAKE(dlopen, (const char *file, int flags), (file, flags))
#else
TAKE(malloc, (size_t bytes), (bytes))
TAKE(calloc, (size_t count, size_t bytes), (count, bytes))
TAKE(realloc, (void *at, size_t bytes), (at, bytes))
#endif
"""


@pytest.mark.parametrize("function", ["linked", "looked_up"])
@pytest.mark.parametrize("behind", [True, False], ids=["behind", "before"])
@pytest.mark.parametrize("first", ["0", "1"], ids=["at each call", "at the first"])
@pytest.mark.parametrize("what", ["OPENING", "ALLOCATING"])
def test_what_is_looked_up_while_it_is_opened_is_too_early(
    node: Node, limited: dict[str, str], what: str, first: str, behind: bool, function: str
) -> None:
    """By another library that is preloaded, where the loader calls it."""
    other = library(
        TAKES_OVER, f"-D{what}", f"-DFIRST={first}", "-fno-builtin", "-ldl", name="libother.so"
    )
    both = [str(built() / "libvgpu.so"), str(other)]
    limited["LD_PRELOAD"] = ":".join(both if behind else reversed(both))
    assert said(node, limited, plugin(), function) == str(OUT_OF_MEMORY)


READ_ONLY = """
#include <dlfcn.h>
__asm__(".pushsection .fixed, \\"a\\"\\n.balign 8\\nlookup: .quad dlsym\\n.popsection");
extern void *(*const lookup)(void *, const char *) __attribute__((visibility("hidden")));
int outer(void) { return lookup(RTLD_DEFAULT, "of nobody") == 0; }
"""


def test_what_lies_where_nothing_is_written_is_left(node: Node, limited: dict[str, str]) -> None:
    """As in code that was not compiled for a library."""
    opened = library(READ_ONLY, "-ldl", "-Wl,-z,notext", name="libfixed.so")
    assert said(node, limited, opened, "outer") == "1"


def test_where_pages_stay_as_they_are_the_library_does_too(
    node: Node, limited: dict[str, str]
) -> None:
    program, opened = compiled("deep_refused.c", "-ldl"), plugin("-Wl,-z,now", "-Wl,-z,relro")
    done = node.run_program([str(program), str(opened), "linked"], **limited)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


CONSTRUCTED = """
#include <link.h>
void in_the_midst(void);
static int look(struct dl_phdr_info *info, size_t size, void *context) { return 1; }
__attribute__((constructor)) static void construct(void)
{
    in_the_midst();
    dl_iterate_phdr(look, 0);
}
int linked(void);
int outer(void) { return linked(); }
"""
PICKED = """
void in_the_midst(void);
static int none(void) { return 0; }
static void *pick(void) { in_the_midst(); return none; }
int picked(void) __attribute__((ifunc("pick")));
"""
PICKING = """
#include <dlfcn.h>
int picked(void), cuInit(unsigned), cuMemAlloc_v2(unsigned long long *, unsigned long);
static void *const volatile all[] = {dlopen, cuInit, cuMemAlloc_v2, picked, dlsym};
int outer(void) {
    unsigned long long address;
    int (*init)(unsigned) = all[1], (*allocate)(unsigned long long *, unsigned long) = all[2];
    init(0);
    return allocate(&address, 60 << 20) | allocate(&address, 60 << 20) | picked();
}
"""


def said_meanwhile(node: Node, limited: dict[str, str], turn: str, loading: Path) -> str:
    """What the library gives that one thread loads while another looks something up."""
    program = compiled("deep_meanwhile.c", "-ldl", "-lpthread", "-rdynamic")
    opened = plugin("-DNUMBER=1")
    done = node.run_program([str(program), turn, str(opened), str(loading), "outer"], **limited)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize("turn", ["first", "again"])
def test_who_looks_up_while_a_constructor_runs_keeps_nothing_from_it(
    node: Node, limited: dict[str, str], turn: str
) -> None:
    """The constructor wants the loader's list, which the lookup may not hold while it waits."""
    loading = library(CONSTRUCTED, str(plugin()), name="libloading.so")
    assert said_meanwhile(node, limited, turn, loading) == str(OUT_OF_MEMORY)


@pytest.mark.parametrize("turn", ["first", "again"])
def test_a_library_that_is_half_bound_meanwhile_is_left_until_it_is(
    node: Node, limited: dict[str, str], turn: str
) -> None:
    needed = (str(library(PICKED, name="libpicked.so")), str(driver()), "-ldl")
    loading = library(PICKING, *needed, "-Wl,-z,now", "-Wl,-z,relro", name="libloading.so")
    assert said_meanwhile(node, limited, turn, loading) == str(OUT_OF_MEMORY)


INNER = "int answer(void) { return 42; }\n"
OPENER = """
#include <dlfcn.h>
int asked(void) {
    int (*function)(void);
    void *library = dlopen("libinner.so", FLAGS);
    if (!library || !(*(void **)&function = dlsym(library, "answer")))
        return -1;
    return function();
}
"""


@pytest.mark.parametrize(
    "flags", ["RTLD_NOW", "RTLD_NOW | RTLD_DEEPBIND"], ids=["as usual", "deep"]
)
def test_the_run_path_of_who_opens_a_library_counts(
    node: Node, limited: dict[str, str], flags: str
) -> None:
    """Libc asks who calls it: not us."""
    inner = library(INNER, name="libinner.so")
    opener = library(
        OPENER, f"-DFLAGS={flags}", f"-Wl,-rpath,{inner.parent}", "-ldl", name="libopener.so"
    )
    code = f"say(result=ctypes.CDLL({str(opener)!r}).asked())"
    assert node.run(code, **limited)["result"] == 42


def test_who_asks_for_a_library_that_is_not_there_is_told(
    node: Node, limited: dict[str, str]
) -> None:
    program = compiled("deep.c", "-ldl", "-rdynamic")
    done = node.run_program([str(program), "now", "libabsent.so", "any"], **limited)
    assert "libabsent.so: cannot open shared object file" in done.stdout
