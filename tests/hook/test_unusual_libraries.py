"""Programs that never touch CUDA, with libraries as they seldom are: a lookup of theirs is answered as without us."""

import subprocess
from pathlib import Path

import pytest
from c_programs import compiled, library
from hooked_programs import Node

HIGH = "int seven(void);\nint seven(void) { return 7; }\n"
HIGH_UP = """SECTIONS {
    . = 0x800000000000 + SIZEOF_HEADERS; .text : { *(.text*) }
    . = ALIGN(0x10000); .dynamic : { *(.dynamic) } .got : { *(.got*) } .data : { *(.data*) } .bss : { *(.bss*) }
}"""
CHOOSES = """
#include <dlfcn.h>
static int one(void) { return 1; }
static int two(void) { return 2; }
#ifdef OPENS
#define THERE dlopen(OPENS, RTLD_NOW)
#else
#define THERE dlsym(RTLD_DEFAULT, "no such function")
#endif
static void *choose(void) { return THERE ? (void *)one : (void *)two; }
int chosen(void) __attribute__((ifunc("choose")));
int (*volatile kept)(void) = chosen;
int by_kept(void);
int by_kept(void) { return kept(); }
"""
USES = """
#include <dlfcn.h>
#include <stdio.h>
int FUNCTION(void);
int main(void) { printf("%d %d\\n", FUNCTION(), dlsym(RTLD_DEFAULT, "qsort") != 0); return 0; }
"""


@pytest.mark.parametrize(
    ("source", "flags", "function", "said"),
    [
        pytest.param(HIGH, ["-Wl,-soname,libunusual.so", "-Wl,-z,norelro", "-Wl,-T,SCRIPT"], "seven", "7 1\n",
                     id="linked where it cannot be loaded, as the vDSO of gVisor"),
        pytest.param(CHOOSES, ["-fno-plt", "-Wl,-z,now"], "by_kept", "2 1\n",
                     id="whose functions are chosen by a lookup, before we are bound"),
        pytest.param(CHOOSES, ['-DOPENS="libof_nobody.so"', "-fno-plt", "-Wl,-z,now"], "by_kept", "2 1\n",
                     id="whose functions are chosen by what can be opened, before we are bound"),
        pytest.param(CHOOSES, ['-DOPENS="libcuda.so.0"', "-fno-plt", "-Wl,-z,now"], "by_kept", "2 1\n",
                     id="or by a driver that can be opened"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("hook", [False, True], ids=["without us", "with us"])
def test_lookups_work(
    node: Node, tmp_path: Path, source: str, flags: list[str], function: str, said: str, hook: bool
) -> None:
    script = tmp_path / "high.ld"
    script.write_text(HIGH_UP)
    made = library(
        source, *(flag.replace("SCRIPT", str(script)) for flag in flags), name="libunusual.so"
    )
    program = compiled(
        USES, f"-DFUNCTION={function}", str(made), f"-Wl,-rpath,{made.parent}", "-ldl"
    )
    done = subprocess.run(
        [program],
        env=node.environment(hook),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


LOOKS_UP = """
#include <dlfcn.h>
static int ready;
__attribute__((constructor)) static void construct(void) { ready = dlsym(RTLD_DEFAULT, "qsort") ? 42 : 0; }
int when_ready(void) { return ready; }
"""
IS_LINKED = """
#include <dlfcn.h>
int when_ready(void);
static int was;
__attribute__((constructor)) static void construct(void) { was = when_ready(); }
int linked_was(void) { return was; }
void *later(const char *name) { return dlsym(RTLD_DEFAULT, name); } /* not looked up until then */
"""
OPENED = "int linked_was(void);\nint it_was(void) { return linked_was(); }\n"


def test_constructors_run_one_after_the_other(node: Node) -> None:
    """As those of libEGL and what it is linked to, in a program that has opened any library with RTLD_DEEPBIND."""
    looks_up = library(LOOKS_UP, "-ldl", name="libup.so")
    linked = library(IS_LINKED, str(looks_up), "-ldl", "-Wl,-z,lazy", name="liblinked.so")
    opened = library(OPENED, str(linked), name="libopened.so")
    said = node.run(
        "import os\n"
        f"ctypes.CDLL({str(library(HIGH, name='libany.so'))!r}, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).seven\n"
        "libc.dlopen.restype = ctypes.c_void_p\n"
        f"handle = libc.dlopen({str(opened).encode()!r}, os.RTLD_LAZY)\n"
        "say(was=ctypes.CDLL(None, handle=handle).it_was())"
    )
    assert said["was"] == 42
