"""A container with musl instead of glibc: nothing of it may fail because of us.

Its loader knows no /etc/ld.so.preload, so there is no limit either (docs/hook.md says how to tell);
LD_PRELOAD it knows, and whoever sets that gets us.
"""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import built
from hooked_programs import LIMIT, Node

LOADER = Path(f"/lib/ld-musl-{platform.machine()}.so.1")

pytestmark = pytest.mark.skipif(
    not LOADER.exists(), reason="musl is not installed (apt-get install musl)"
)

PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    const char *names[] = {"qsort", "cuInit", "cuMemAlloc_v2", "nvmlInit_v2", "cudaMalloc", "nothing"};
    for (int i = 0; i < 6; i++)
        printf("%s %d %d\n", names[i], dlsym(RTLD_DEFAULT, names[i]) != NULL, dlerror() != NULL);
    printf("next %d, errno %d\n", dlsym(RTLD_NEXT, "malloc") != NULL, errno);
    printf("open %d %d\n", dlopen("libcuda_of_nobody.so", RTLD_NOW) != NULL, dlerror() != NULL);
    printf("driver %d %d\n", dlopen("libcuda.so.1", RTLD_NOW) != NULL, dlerror() != NULL);
    return 0;
}
"""


DRIVER = "int cuInit(unsigned flags) { return flags != 0; }\n"


def made(out: Path, text: str, *flags: str) -> Path:
    """A program or library of a musl container."""
    source = out.with_suffix(".c")
    source.write_text(text)
    target = f"{platform.machine()}-linux-musl"
    words = ["-m", "ziglang", "cc", "-target", target, "-O1", "-fno-sanitize=undefined"]
    words += [*flags, str(source), "-o", str(out)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, beside a driver."""
    directory = tmp_path_factory.mktemp("musl")
    made(directory / "libcuda.so.1", DRIVER, "-shared", "-fPIC")
    return made(directory / "program", PROGRAM, "-dynamic")


def test_a_program_of_another_libc_runs_as_without_us(node: Node, program: Path) -> None:
    env = {LIMIT: "1g", "LD_LIBRARY_PATH": str(program.parent)}
    with_us = node.run_program([str(program)], **env)
    without = node.run_program([str(program)], **env, LD_PRELOAD="")
    assert (with_us.returncode, with_us.stderr) == (0, "")
    assert with_us.stdout == without.stdout
    assert "qsort 1 0" in with_us.stdout
    assert "cuInit 0 1" in with_us.stdout
    assert "driver 1 0" in with_us.stdout


def test_its_loader_really_took_us(node: Node, program: Path) -> None:
    """Or the test above would say nothing: it refuses a library with a symbol that musl lacks."""
    done = node.run_program([str(LOADER), "--list", str(program)])
    assert done.returncode == 0
    assert "Error" not in done.stderr
    assert str(built() / "libvgpu.so") in done.stdout
