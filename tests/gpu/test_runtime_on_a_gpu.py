"""A program of NVIDIA's CUDA runtime under a limit: every way in which it allocates, and a kernel.

On a simulated driver the runtime does not start (tests/hook/test_cuda_runtime.py), so there each
call gives up, and all that is seen is that the program has no fault of its own.
"""

import subprocess
from pathlib import Path

import pytest
from built_hook import built
from cuda_runtimes import NEWEST, program
from gpu.conftest import CACHE, Limits
from gpu.machine import START_S, Machine, simulated_machine

from hook.driver_symbols.headers import Release, dotted

SMALL_MIB, LARGE_MIB = 512, 700  # of which 1024 MiB bear either, but not both
GIVES_UP = {12: "500", 13: "35"}  # 13 finds this driver too old
COUNTED = (
    "cudaMalloc",
    "cudaMallocManaged",
    "cudaMallocPitch",
    "cudaMallocAsync",
    "cudaMallocArray",
)

runtimes = pytest.mark.parametrize(
    ("release", "link"),
    [
        pytest.param(release, link, id=f"{dotted(release)} {link}")
        for release in NEWEST
        for link in ("linked", "static")
    ],
)


def said(
    machine: Machine, release: Release, link: str, *, hook: bool = True, **env: str
) -> list[str]:
    """The lines of runtime_calls.c on the first GPU that CUDA may use."""
    properties = "cudaGetDeviceProperties" + ("_v2" if release < (13, 0) else "")
    words = [str(program("runtime_calls.c", release, link, f"-DPROPERTIES={properties}"))]
    uuid = next(f.uuid for f in machine.facts if f.uuid not in machine.unusable)
    preload = {"LD_PRELOAD": str(built() / "libvgpu.so")} if hook else {}
    done = subprocess.run(
        [*words, str(SMALL_MIB), str(LARGE_MIB)],
        env=machine.environment(**{"CUDA_VISIBLE_DEVICES": uuid, **preload, **env}),
        capture_output=True, text=True, timeout=START_S, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def expected(beside: int, total_mib: str, lookup: str) -> list[str]:
    """What the program says where each large block beside a small one gives `beside`."""
    return [
        *(f"{name} 0 {beside} 0 0" for name in COUNTED),
        "cudaMallocHost 0 0 0 0",
        f"cudaMemGetInfo 0 {total_mib}",
        f"cudaGetDeviceProperties 0 {total_mib}",
        f"cudaGetDriverEntryPoint 0 {lookup}",
        "cudaDeviceSetLimit 0 1",
        "cudaLaunchKernel 0 1",
        "cudaGraphLaunch 0",
        "cudaLibraryUnload 0",
        "cudaDeviceReset 0",
        f"cudaMalloc 0 {beside} 0 0",
    ]


def without_totals(lines: list[str]) -> list[str]:
    """A driver's two figures need not be the same."""
    return [x for x in lines if not x.startswith(("cudaMemGetInfo", "cudaGetDeviceProperties"))]


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", ["real"], indirect=True)
@runtimes
def test_a_limit_holds_for_all_that_the_runtime_allocates(
    machine: Machine, limited: Limits, tmp_path: Path, release: Release, link: str
) -> None:
    limits = {**limited(1), CACHE: str(tmp_path / "runtime.cache")}
    (total,) = {text.removesuffix("m") for name, text in limits.items() if name != CACHE}
    assert said(machine, release, link, **limits) == expected(2, total, "libvgpu.so")
    free = said(machine, release, link, hook=False)
    told = {line.split()[0]: line.split()[-1] for line in free}
    assert told["cudaGetDriverEntryPoint"] != "libvgpu.so"
    whole = told["cudaMemGetInfo"]
    assert int(whole) > int(total)
    assert without_totals(free) == without_totals(
        expected(0, whole, told["cudaGetDriverEntryPoint"])
    )


@runtimes
@pytest.mark.parametrize("hook", [True, False], ids=["hooked", "plain"])
def test_where_the_runtime_does_not_start_each_call_says_so(
    tmp_path: Path, release: Release, link: str, hook: bool
) -> None:
    machine = simulated_machine(tmp_path)
    env = {CACHE: str(tmp_path / "container.cache")}
    lines = said(machine, release, link, hook=hook, **env)
    names = [line.split()[0] for line in expected(2, "0", "-")]
    assert [line.split()[0] for line in lines] == names
    assert {line.split()[1] for line in lines} == {GIVES_UP[release[0]]}
