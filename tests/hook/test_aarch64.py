"""The library of the other architecture, run by qemu: lookups, limits, threads, forks.

With pages of 4 KiB, and of 64 KiB, as kernels for Grace have them.
"""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from built_hook import ROOT, compiler
from c_programs import compiled
from hook_table import cuda_symbols
from hooked_programs import LIMIT, Node
from process_lives import lives
from small_stacks import (
    LEAST_OF_AARCH64_BYTES,
    RESULTS,
    SMALLEST_BYTES,
    STEPS,
    most_used_bytes,
    results,
)

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
SYSROOT = Path("/usr/aarch64-linux-gnu")  # Debian and Ubuntu: libc6-arm64-cross

pytestmark = [
    pytest.mark.skipif(platform.machine() == "aarch64", reason="every test is of aarch64 here"),
    pytest.mark.skipif(
        not QEMU or not (SYSROOT / "lib" / "libc.so.6").exists(),
        reason="qemu-user or a libc for aarch64 is not installed "
        "(apt-get install qemu-user-static libc6-arm64-cross)",
    ),
]


@dataclass(frozen=True)
class Machine:
    """One that does not exist: pages of which size it has, and where everything is that is compiled for it."""

    page_bytes: int
    built: Path


@pytest.fixture(scope="module", params=[4096, 65536], ids=["pages of 4 KiB", "pages of 64 KiB"])
def aarch64(request: pytest.FixtureRequest) -> Machine:
    compiler().build_all(ROOT / ".build" / "hook", sys.executable, "aarch64")
    return Machine(request.param, ROOT / ".build" / "hook" / "aarch64")


def run(
    node: Node,
    machine: Machine,
    words: list[str],
    *flags: str,
    source: str = "lives.c",
    **more: str,
) -> list[str]:
    """The output of a program for aarch64 under the hook."""
    program = compiled(source, *flags, "-ldl", "-lpthread", arch="aarch64")
    env = {
        "LD_PRELOAD": str(machine.built / "libvgpu.so"),
        "LD_LIBRARY_PATH": str(machine.built / "sim"),
        "VGPU_SIM_DRIVER": str(node.sim.config_path),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(node.cache),
        LIMIT: "100m",
        **more,
    }
    settings = [word for name, value in env.items() for word in ("-E", f"{name}={value}")]
    done = subprocess.run(
        [str(QEMU), "-p", str(machine.page_bytes), "-L", str(SYSROOT), *settings, str(program), *words],
        env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@lives("vfork", "exec")  # the kernel runs no program for aarch64 by itself
def test_lives_are_as_on_x86(node: Node, aarch64: Machine, life: str, said: list[str]) -> None:
    assert run(node, aarch64, [life]) == said


@pytest.mark.parametrize("route", ["handle", "default", "next", "program"])
def test_every_function_of_the_table_is_found(node: Node, aarch64: Machine, route: str) -> None:
    names = [row.name for row in cuda_symbols()]
    lines = run(node, aarch64, [route, *names, "qsort"], source="find.c")
    found = dict(line.rsplit(maxsplit=2)[:2] for line in lines)
    assert found == dict.fromkeys(names, "libvgpu.so") | {"qsort": "libc.so.6"}


def test_little_of_a_stack_is_used(node: Node, aarch64: Machine) -> None:
    """Threads are larger here, but the same sources have to get by with those of x86_64."""
    node.sim.kernel("kernel", 20, 400)
    limits = {LIMIT: "1g", "CUDA_DEVICE_SM_LIMIT": "50"}
    words, abi = [str(LEAST_OF_AARCH64_BYTES), *STEPS], f"-I{ROOT / 'hook'}"
    lines = run(node, aarch64, words, abi, source="small_stack.c", **limits)
    assert results(lines) == RESULTS
    assert most_used_bytes(lines) <= SMALLEST_BYTES, lines


def test_a_linked_program_is_limited(node: Node, aarch64: Machine) -> None:
    source = (
        "#include <stdio.h>\n"
        "int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);\n"
        "int cuMemAlloc_v2(unsigned long long *, unsigned long);\n"
        "int main(void) {\n"
        "    void *context; unsigned long long address;\n"
        "    int start = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);\n"
        "    int first = cuMemAlloc_v2(&address, 60 << 20);\n"
        '    printf("%d %d %d\\n", start, first, cuMemAlloc_v2(&address, 60 << 20));\n'
        "    return 0;\n"
        "}\n"
    )
    driver = str(aarch64.built / "sim" / "libcuda.so.1")
    assert run(node, aarch64, [], driver, source=source, LD_BIND_NOW="1") == ["0 0 2"]


@pytest.mark.parametrize("function", ["linked", "pointed_to", "looked_up", "by_version"])
@pytest.mark.parametrize("when", ["now", "lazy"])
def test_a_library_that_is_opened_deep_is_limited(
    node: Node, aarch64: Machine, when: str, function: str
) -> None:
    made = ("-shared", "-fPIC")
    driver = compiled(
        "driver.c", *made, "-Wl,-soname,libcuda.so.1", arch="aarch64", name="libcuda.so.1"
    )
    bound = (f"-Wl,-z,{when}", str(driver), "-ldl")
    plugin = compiled("deep_plugin.c", *made, *bound, arch="aarch64", name="libplugin.so")
    words, where = [when, str(plugin), function], str(driver.parent)
    assert run(node, aarch64, words, source="deep.c", LD_LIBRARY_PATH=where) == ["2"]


PACKED = """
#include <dlfcn.h>
struct __attribute__((packed)) { char before; void *(*lookup)(void *, const char *); } table = {1, dlsym};
int outer(void) { return table.lookup(RTLD_DEFAULT, "of nobody") == 0; }
"""


def test_what_a_deep_library_has_at_an_odd_address_is_read(node: Node, aarch64: Machine) -> None:
    packed = compiled(PACKED, "-shared", "-fPIC", "-ldl", arch="aarch64", name="libpacked.so")
    assert run(node, aarch64, ["now", str(packed), "outer"], source="deep.c") == ["1"]


def test_who_catches_an_exception_out_of_the_driver_is_limited(
    node: Node, aarch64: Machine
) -> None:
    driver = compiled(
        "driver.c", "-DLOUD", "-shared", "-fPIC", "-fexceptions", "-Wl,-soname,libcuda.so.1",
        arch="aarch64", name="libcuda.so.1",
    )  # fmt: skip
    flags = (str(driver), "-fexceptions", "-lunwind")
    said = run(node, aarch64, [], *flags, source="exceptions.c", LD_LIBRARY_PATH=str(driver.parent))
    assert said == ["0 0 caught 1 2"]
