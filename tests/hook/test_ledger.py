"""The C that counts, called directly: the ledger's arithmetic and the layout of the shared file."""

import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT, compiler
from c_programs import library
from hooked_programs import LIMIT, Node
from hypothesis import example, given
from hypothesis import strategies as st

from agent.sim.driver import SimGpu, made_up_uuid

MOST = (1 << 48) - 1


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """ledger.c with its functions visible."""
    path = tmp_path_factory.mktemp("inside") / "inside.so"
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, "-shared", "ledger.c", "-o", str(path)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    library = ctypes.CDLL(str(path))
    library.ledger_reserve.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_void_p,
    ]
    library.ledger_reserve.restype = ctypes.c_bool
    library.ledger_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.ledger_release.restype = ctypes.c_uint64
    library.ledger_used.argtypes = [ctypes.c_void_p]
    library.ledger_used.restype = ctypes.c_uint64
    library.ledger_read.argtypes = [ctypes.c_void_p]
    library.ledger_read.restype = ctypes.c_uint64
    library.ledger_correct.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    library.ledger_correct.restype = ctypes.c_bool
    return library


class Ledger:
    """One ledger in this process's memory."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._word = ctypes.c_uint64()

    def reserve(self, limit: int, amount: int) -> bool:
        before, used = self.used, ctypes.c_uint64()
        word = ctypes.byref(self._word)
        given = bool(self._library.ledger_reserve(word, limit, amount, ctypes.byref(used)))
        assert not given or used.value == before + amount
        return given

    def release(self, amount: int) -> int:
        return int(self._library.ledger_release(ctypes.byref(self._word), amount))

    def read(self) -> int:
        return int(self._library.ledger_read(ctypes.byref(self._word)))

    def correct(self, seen: int, amount: int) -> bool:
        return bool(self._library.ledger_correct(ctypes.byref(self._word), seen, amount))

    @property
    def used(self) -> int:
        return int(self._library.ledger_used(ctypes.byref(self._word)))


amounts = st.one_of(st.integers(0, 1000), st.integers(0, MOST), st.integers(0, (1 << 64) - 1))


@given(
    limit=st.one_of(st.just(0), amounts),
    steps=st.lists(st.tuples(st.sampled_from(["reserve", "release"]), amounts), max_size=40),
)
@example(limit=1 << 60, steps=[("reserve", MOST), ("reserve", 1)])
def test_the_ledger_is_the_arithmetic_it_says(
    inside: ctypes.CDLL, limit: int, steps: list[tuple[str, int]]
) -> None:
    ledger, expected = Ledger(inside), 0
    ceiling = min(limit, MOST) if limit else MOST
    for step, amount in steps:
        if step == "reserve":
            fits = expected + amount <= ceiling
            assert ledger.reserve(limit, amount) is fits
            expected += amount if fits else 0
        else:
            assert ledger.release(amount) == min(expected, amount)
            expected = max(0, expected - amount)
        assert ledger.used == expected


def test_a_correction_from_stale_figures_is_refused(inside: ctypes.CDLL) -> None:
    ledger = Ledger(inside)
    assert ledger.reserve(0, 500)
    seen = ledger.read()
    assert ledger.reserve(0, 100)
    ledger.release(100)
    assert ledger.used == 500  # the same figure, but not the same history
    assert not ledger.correct(seen, 0)
    assert ledger.correct(ledger.read(), 200)
    assert ledger.used == 200


def test_racing_processes_never_exceed_the_limit(tmp_path: Path) -> None:
    """Each checks, as soon as it was given bytes, whether more are in use than there may be."""
    program = tmp_path / "race"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-D_GNU_SOURCE", "-O2",
         "tests/hook/race.c", "hook/ledger.c", "-o", str(program)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    done = subprocess.run([program, "5000000"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


# --- the shared region, as another program's monitor reads it ---------------------------------------

REGION_BYTES, SLOT_BYTES, FIRST_SLOT = 2008952, 1960, 1856


class Region:
    """A reader of HAMi-core's region 1.2 that knows nothing of the C."""

    def __init__(self, path: Path) -> None:
        self.raw = path.read_bytes()

    def i32(self, at: int) -> int:
        return int(struct.unpack_from("<i", self.raw, at)[0])

    def u64(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self.raw, at)[0])

    def uuid(self, device: int) -> str:
        return self.raw[64 + 96 * device :][:96].rstrip(b"\0").decode()

    def slots(self) -> list[tuple[int, int, int]]:
        """pid, total and data bytes on device 0 of each slot that counts."""
        found = []
        for index in range(self.i32(2008896)):
            at = FIRST_SLOT + SLOT_BYTES * index
            if self.i32(at + 1928) != 0:
                used = at + 8
                found.append((self.i32(at), self.u64(used + 32), self.u64(used + 16)))
        return found


def test_a_monitor_finds_limits_uuids_and_usage(node: Node) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    tenant = node.start(
        "import os\nstart()\nalloc(300)\nprint(os.getpid(), flush=True)\ninput()",
        env={
            f"{LIMIT}_0": "1000m",
            f"{LIMIT}_1": "2000m",
            "NVIDIA_VISIBLE_DEVICES": f"{made_up_uuid(0)},{made_up_uuid(1)}",
            "CUDA_DEVICE_SM_LIMIT": "30",
            "CUDA_TASK_PRIORITY": "0",
        },
    )
    assert tenant.stdout is not None
    pid = int(tenant.stdout.readline())
    region = Region(node.cache)
    assert len(region.raw) > REGION_BYTES
    assert (region.i32(0), region.i32(4), region.i32(8)) == (19920718, 1, 2)
    assert region.u64(56) == 2
    assert [region.uuid(n) for n in range(3)] == [made_up_uuid(0), made_up_uuid(1), ""]
    assert [region.u64(1600 + 8 * n) >> 20 for n in range(3)] == [1000, 2000, 0]
    assert [region.u64(1728 + 8 * n) for n in range(2)] == [30, 30]
    assert region.slots() == [(pid, 300 << 20, 300 << 20)]
    assert (region.i32(2008900), region.i32(2008904), region.i32(2008908)) == (1, 2, 0)
    assert region.u64(2008912) > 1_700_000_000
    tenant.communicate("\n", timeout=60)
    assert Region(node.cache).slots() == []


def test_a_limit_changed_in_the_file_holds_at_once(node: Node) -> None:
    tenant = node.start(
        "start()\nprint(alloc(600)[0], flush=True)\ninput()\nsay(more=alloc(300)[0], total=total_mib())",
        env={LIMIT: "1000m", "NVIDIA_VISIBLE_DEVICES": made_up_uuid(0)},
    )
    assert tenant.stdout is not None
    assert tenant.stdout.readline() == "0\n"
    with node.cache.open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<Q", 700 << 20), 1600)
    out, _ = tenant.communicate("\n", timeout=60)
    assert '"more": 2, "total": 700' in out


def test_a_file_that_hami_core_made_is_taken_over(node: Node) -> None:
    """Version 1.1, one byte longer than its structure, with a process that is gone."""
    raw = bytearray(REGION_BYTES + 1)
    struct.pack_into("<iII", raw, 0, 19920718, 1, 1)
    struct.pack_into("<Q", raw, 56, 1)
    raw[64 : 64 + 40] = made_up_uuid(0).encode()
    struct.pack_into("<Q", raw, 1600, 800 << 20)
    struct.pack_into("<i", raw, 2008896, 1)
    struct.pack_into("<i", raw, FIRST_SLOT, 2**22 + 1)  # above any pid
    struct.pack_into("<i", raw, FIRST_SLOT + 1928, 1)
    struct.pack_into("<Q", raw, FIRST_SLOT + 8 + 32, 700 << 20)
    node.cache.write_bytes(raw)
    said = node.run("start()\nsay(total=total_mib(), all=alloc(800)[0])", **{LIMIT: "1000m"})
    assert (said["total"], said["all"]) == (800, 0)


def test_garbage_in_the_file_harms_nobody(node: Node) -> None:
    """The file belongs to the container: its processes may write what they like."""
    node.run("start()", **{LIMIT: "1000m"})
    raw = bytearray(node.cache.read_bytes())
    for at in (56, 2008896, FIRST_SLOT, FIRST_SLOT + 1928, FIRST_SLOT + 40, 2031624):
        raw[at : at + 8] = b"\xff" * 8
    node.cache.write_bytes(raw)
    said = node.run("start()\nsay(result=alloc(100)[0], info=info_mib())", **{LIMIT: "1000m"})
    assert said["rc"] == 0
    assert said["result"] in {0, 2}


NVML = """
#include <string.h>
int longest; /* uuid that was asked for */
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    longest = (int)strlen(uuid) > longest ? (int)strlen(uuid) : longest;
    return *device = NULL, 6; /* NVML_ERROR_NOT_FOUND */
}
"""


def test_nvml_is_asked_for_no_uuid_that_does_not_end(node: Node) -> None:
    """It would read on, through what follows it in the file, and behind that."""
    nvml = library(NVML, name="libnvidia-ml.so.1")
    code = (
        "import os\n"
        "begun = [start()]\n"
        f"os.pwrite(os.open({str(node.cache)!r}, os.O_RDWR), b'G' * 96 * 16, 64)\n"
        "begun += [cuda.cuDevicePrimaryCtxReset_v2(0), start()]\n"
        "nvml = ctypes.CDLL('libnvidia-ml.so.1')\n"
        "say(begun=begun, longest=ctypes.c_int.in_dll(nvml, 'longest').value)"
    )
    paths = f"{nvml.parent}:{node.sim.libraries}"
    said = node.run(code, **{LIMIT: "1000m", "LD_LIBRARY_PATH": paths})
    assert (said["begun"], said["longest"]) == ([0, 0, 0], len(made_up_uuid(0))), said["stderr"]
