"""NVIDIA's CUDA runtime over the hook: what it gets when it looks the driver up, and when it gives up.

It goes no further on a simulated driver: it takes its bookkeeping from private tables of the
driver, one of which tells NVIDIA's driver from anybody else's, and the runtime's licence forbids to
get around that. All its lookups come before. What it does after them takes a GPU:
tests/gpu/test_runtime_on_a_gpu.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from built_hook import built
from c_programs import library
from cuda_runtimes import NEWEST, RELEASES, program
from hook_table import cuda_symbols
from hooked_programs import LIMIT, Node

from hook.driver_symbols import generate, tables
from hook.driver_symbols.headers import Release, dotted

pytestmark = pytest.mark.timeout(600)  # the first run fetches 7 MB

OURS, DRIVER = "libvgpu.so", "libcuda.so.1"
PER_THREAD = 2
HOOKED = {symbol.name for symbol in cuda_symbols()}
DECLARED = tables.parse_cuda(generate.CUDA_TSV.read_text())
# In NVIDIA's reference of 13.4, and in no header. They make up a schedule of kernels, which is a node
# of a graph: by that reference nothing of it runs before cuGraphLaunch, which is hooked.
UNDECLARED = {"cuSubgridCreate", "cuSubgridWorkerGridCreate", "cuSubgridWorksetCreate"}
# Some of those without which a limit would be none, in each runtime.
NEEDED = {
    "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch_v2", "cuArrayCreate_v2", "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemFree_v2", "cuMemGetInfo_v2", "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain", "cuLibraryLoadData", "cuLaunchKernel", "cuLaunchKernelEx",
    "cuLaunchKernelEx_ptsz", "cuLaunchCooperativeKernel", "cuGraphLaunch", "cuGraphLaunch_ptsz",
}  # fmt: skip


@dataclass(frozen=True)
class Lookup:
    """One line of runtime_lookups.c."""

    way: str
    name: str
    version: int
    flags: int
    result: int
    library: str
    symbol: str


WAYS = [(release, link) for release in RELEASES for link in ("linked", "opened")]
WAYS += [(release, "static") for release in NEWEST]  # 12.0's wheel has no static one
runtimes = pytest.mark.parametrize(
    ("release", "link"), [pytest.param(*way, id=f"{dotted(way[0])} {way[1]}") for way in WAYS]
)


@dataclass(frozen=True)
class Said:
    """What became of a program."""

    results: str
    lookups: list[Lookup]


def said(node: Node, release: Release, link: str, *, hook: bool, **env: str) -> Said:
    """Run the program, and listen to its lookups."""
    listener = library("runtime_lookups.c", "-ldl", name="liblistener.so")
    notes = node.cache.with_name("lookups")
    notes.write_text("")
    preload = [str(listener), *([str(built() / OURS)] if hook else [])]
    more = {LIMIT: "100m", "LOOKUPS": str(notes), "LD_PRELOAD": ":".join(preload), **env}
    done = node.run_program([str(program("runtime_start.c", release, link))], **more)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split("\t") for line in notes.read_text().splitlines()]
    return Said(
        done.stdout, [Lookup(a, b, int(c), int(d), int(e), f, g) for a, b, c, d, e, f, g in lines]
    )


@pytest.fixture
def newest(node: Node) -> Node:
    """A driver that is new enough for each runtime."""
    node.sim.versions(driver="610.43.02", cuda=1000 * NEWEST[-1][0] + 10 * NEWEST[-1][1])
    return node


@runtimes
def test_the_runtime_gets_ours_for_exactly_what_is_hooked(
    newest: Node, release: Release, link: str
) -> None:
    plain = said(newest, release, link, hook=False).lookups
    hooked = said(newest, release, link, hook=True).lookups
    assert len(plain) > 300
    assert {lookup.library for lookup in plain} == {DRIVER, ""}
    assert [
        (one.way, one.name, one.version, one.flags, one.result, one.symbol) for one in hooked
    ] == [(one.way, one.name, one.version, one.flags, one.result, one.symbol) for one in plain]
    expected = [OURS if one.symbol in HOOKED else one.library for one in plain]
    assert [one.library for one in hooked] == expected
    assert {one.symbol for one in hooked if one.library == OURS} >= NEEDED


def newest_driver_gives(lookup: Lookup) -> str:
    """The function that a driver with every function of the headers gives; empty if there is none."""
    found = [
        row
        for row in DECLARED
        if row.name == lookup.name
        and row.since <= lookup.version
        and (not row.per_thread or lookup.flags & PER_THREAD)
    ]
    return max(found, key=lambda row: (row.since, row.per_thread)).symbol if found else ""


@pytest.mark.parametrize("release", RELEASES, ids=dotted)
def test_each_function_that_the_runtime_looks_up_is_known(newest: Node, release: Release) -> None:
    """One that no header declares is in no class of classes.toml, and nobody has judged it."""
    asked = said(newest, release, "opened", hook=True).lookups
    known = {row.name for row in DECLARED} | {row.symbol for row in DECLARED}
    assert not known & UNDECLARED
    assert {one.name for one in asked if one.name} - known - UNDECLARED == set()


@pytest.mark.parametrize("release", RELEASES, ids=dotted)
def test_of_what_is_hooked_the_runtime_asks_for_no_other_abi(
    newest: Node, release: Release
) -> None:
    """A driver gives the ABI that was asked for, and one that we do not have is the driver's own."""
    asked = said(newest, release, "opened", hook=True).lookups
    given = {newest_driver_gives(one) for one in asked if one.way == "cuGetProcAddress"} - {""}
    families = {row.symbol: row.name for row in DECLARED}
    names = {families[symbol] for symbol in HOOKED}
    assert {symbol for symbol in given if families[symbol] in names} - HOOKED == set()
    assert given >= NEEDED


def simulated(node: Node) -> None:
    """The driver as it is, without private tables."""


@runtimes
@pytest.mark.parametrize(
    ("change", "env", "result"),
    [
        pytest.param(simulated, {}, 500, id="no private tables"),
        pytest.param(lambda node: node.sim.versions(cuda=11040), {}, 35, id="too old"),
        pytest.param(lambda node: node.sim.driver("absent"), {}, 100, id="without GPUs"),
        pytest.param(lambda node: node.sim.driver("mismatch"), {}, 803, id="another kernel module"),
        pytest.param(simulated, {"LD_LIBRARY_PATH": ""}, 35, id="no driver"),
    ],
)
def test_the_runtime_gives_up_for_the_reason_that_it_has_without_us(
    newest: Node,
    release: Release,
    link: str,
    change: Callable[[Node], None],
    env: dict[str, str],
    result: int,
) -> None:
    change(newest)
    plain, hooked = (said(newest, release, link, hook=hook, **env) for hook in (False, True))
    assert hooked.results == plain.results
    assert hooked.results.split()[0] == str(result)
