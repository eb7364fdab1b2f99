"""A setuid program that starts CUDA: its caller says where to count, and gains no file by that."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from built_hook import built
from c_programs import compiled
from hooked_programs import LIMIT, Node
from limits_bed import limits_bed
from region_files import FILE_BYTES, REGION_BYTES

from agent.domain.limits_file import DeviceLimit
from agent.sim.driver import made_up_uuid

MADE, REFUSED = 0, 304  # CUDA_SUCCESS, CUDA_ERROR_OPERATING_SYSTEM
NOBODY = 65534

SETUID = """
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>
int cuInit(unsigned);
int main(void) {
    printf("uid %d euid %d secure %lu\\n", (int)getuid(), (int)geteuid(), getauxval(AT_SECURE));
    printf("%d\\n", cuInit(0));
    return 0;
}
"""


@contextmanager
def setuid_program(node: Node, hook: Path) -> Iterator[int]:
    """A descriptor of one that is root's whoever starts it, and linked to us and the driver by their paths."""
    libraries = [hook, node.sim.libraries / "libcuda.so.1"]
    search = [f"-Wl,-rpath,{path.parent}" for path in libraries]
    path = compiled(SETUID, "-Wl,--no-as-needed", *map(str, libraries), *search)
    if os.geteuid() != 0:
        pytest.skip("only root gives a program root's rights")
    if os.statvfs(path).f_flag & os.ST_NOSUID:
        pytest.skip(f"setuid programs have no rights in {path.parent}")
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        pytest.skip("setuid programs have no rights among this process's children")
    path.chmod(0o4755)
    descriptor = os.open(path, os.O_RDONLY)  # the caller need not reach the directory
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def program(node: Node) -> Iterator[int]:
    with setuid_program(node, built() / "libvgpu.so") as descriptor:
        yield descriptor


def started(node: Node, program: int, *, by: int = NOBODY, **env: str) -> tuple[int, str]:
    """What its cuInit gives, and what it writes to stderr."""
    done = subprocess.run(
        [f"/proc/self/fd/{program}"], user=by, group=by, extra_groups=[], pass_fds=[program],
        env=node.environment(hook=False, **{LIMIT: "1g", **env}), timeout=60, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    who, result = done.stdout.splitlines()
    assert who == f"uid {by} euid 0 secure {int(by != 0)}"
    return int(result), done.stderr


def test_it_makes_no_file_where_its_caller_may_not(node: Node, program: int) -> None:
    result, said = started(node, program)
    assert result == REFUSED
    assert f"{node.cache}: a setuid program makes none" in said
    assert not node.cache.exists()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(
            b"root's own".ljust(REGION_BYTES + 1, b"."), id="another file, as long as one"
        ),
        pytest.param(bytes(FILE_BYTES), id="zeros, as long as one"),
    ],
)
def test_it_changes_no_file_that_is_not_in_order(node: Node, program: int, content: bytes) -> None:
    """Made again, it would be everybody's to write."""
    node.cache.write_bytes(content)
    node.cache.chmod(0o600)
    result, said = started(node, program)
    assert result == REFUSED
    assert f"{node.cache}: a setuid program makes none" in said
    assert node.cache.read_bytes() == content
    assert node.cache.stat().st_mode & 0o7777 == 0o600


def test_it_counts_in_what_another_program_has_made(node: Node, program: int) -> None:
    assert node.run("say(init=cuda.cuInit(0))", **{LIMIT: "1g"})["init"] == MADE
    assert started(node, program) == (MADE, "")


@pytest.mark.parametrize("makes_region", [False, True], ids=["by nobody", "by the agent"])
def test_what_the_limits_file_names_has_to_be_there_too(
    node: Node, tmp_path: Path, makes_region: bool
) -> None:
    """It may lie beside the library, where others than root may write."""
    bed = limits_bed(node, tmp_path / "library")
    device = DeviceLimit(uuid=made_up_uuid(0), memory_limit_bytes=1 << 30)
    bed.write(device, makes_region=makes_region)
    elsewhere = str(tmp_path / "elsewhere")
    with setuid_program(node, bed.library) as program:
        result, _ = started(node, program, CUDA_DEVICE_MEMORY_SHARED_CACHE=elsewhere)
    assert result == (MADE if makes_region else REFUSED)
    assert node.cache.exists() == makes_region
    assert not Path(elsewhere).exists()


def test_root_itself_may_make_it(node: Node, program: int) -> None:
    """There it has no more rights than who starts it."""
    assert started(node, program, by=0) == (MADE, "")
    assert node.cache.stat().st_size == FILE_BYTES
