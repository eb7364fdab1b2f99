"""The library under the glibc of an old container, Ubuntu 16.04's (2.23), which is kept beside this file.

Its loader has room between its two parts, in which the kernel lets other libraries lie, as the driver does
in one process of three; libpthread and libdl are libraries of their own.
"""

import platform
from collections.abc import Mapping
from pathlib import Path

import pytest
from built_hook import built
from bundling.runtime import debian_packages
from c_programs import compiled, driver, library
from hook_table import cuda_symbols
from hooked_programs import LIMIT, Node
from process_lives import lives

PACKAGES = Path(__file__).parent / "glibc"
TIMES = 15  # that a process is started, each time at other addresses

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the package is of x86_64")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the old libraries."""
    root = tmp_path_factory.mktemp("glibc")
    for files in debian_packages("libc6", folder=PACKAGES):
        files.extractall(root, filter="tar")
    return root / "lib" / "x86_64-linux-gnu"


def run(
    node: Node,
    libraries: Path,
    words: list[str],
    *flags: str,
    source: str,
    env: Mapping[str, str],
    drivers: Path | None = None,
) -> list[str]:
    """The output of a program under the old loader."""
    loader = f"-Wl,--dynamic-linker={libraries / 'ld-2.23.so'}"
    program = compiled(source, *flags, "-ldl", "-lpthread", loader)
    where = f"{libraries}:{drivers or built() / 'sim'}"
    done = node.run_program([str(program), *words], LD_LIBRARY_PATH=where, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@lives()
def test_lives_are_as_with_a_new_one(
    node: Node, libraries: Path, life: str, said: list[str]
) -> None:
    each = [
        run(node, libraries, [life], source="lives.c", env={LIMIT: "100m"}) for _ in range(TIMES)
    ]
    assert each == [said] * TIMES


@pytest.mark.parametrize("route", ["handle", "default", "next", "program"])
def test_every_function_of_the_table_is_found(node: Node, libraries: Path, route: str) -> None:
    names = [row.name for row in cuda_symbols()]
    for _ in range(TIMES):
        lines = run(node, libraries, [route, *names, "qsort"], source="find.c", env={})
        found = dict(line.rsplit(maxsplit=2)[:2] for line in lines)
        assert found == dict.fromkeys(names, "libvgpu.so") | {"qsort": "libc.so.6"}


@pytest.mark.parametrize("function", ["linked", "looked_up"])
@pytest.mark.parametrize("when", ["now", "lazy"])
def test_a_library_that_is_opened_deep_is_limited(
    node: Node, libraries: Path, when: str, function: str
) -> None:
    bound = (f"-Wl,-z,{when}", str(driver()), "-ldl")
    plugin = library("deep_plugin.c", *bound, name="libplugin.so")
    words, drivers = [when, str(plugin), function], driver().parent
    for _ in range(TIMES):
        said = run(node, libraries, words, source="deep.c", env={LIMIT: "100m"}, drivers=drivers)
        assert said == ["2"]


def test_so_it_is_where_the_program_has_the_loaders_record(node: Node, libraries: Path) -> None:
    """The loader goes on with the program's copy, unlike a new one."""
    plugin = library("deep_plugin.c", str(driver()), "-ldl", name="libplugin.so")
    words, drivers = [str(plugin), "linked"], driver().parent
    said = run(node, libraries, words, source="deep_list.c", env={LIMIT: "100m"}, drivers=drivers)
    assert said == ["2"]
