"""The agent's limits file: it goes before the environment, and a change of it holds at once."""

import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from built_hook import ROOT, compiler
from c_programs import compiled
from hooked_programs import CALLS, LIMIT, Node
from limits_bed import LINES_AT, LimitsBed, Talker, limits_bed

from agent.domain.limits_file import CorePolicy, DeviceLimit
from agent.sim.driver import SimGpu, SimMig, made_up_uuid

A, B, C = (made_up_uuid(place) for place in range(3))
MIB = 1 << 20
FULL = 46068
ASK = "say(init=start(), total=total_mib(), info=info_mib())"
NVML = "import pynvml as p; p.nvmlInit(); gpu = p.nvmlDeviceGetHandleByIndex(0)"


def gpu(uuid: str = A, mib: int = 1000, **more: Any) -> DeviceLimit:
    return DeviceLimit(uuid=uuid, memory_limit_bytes=mib * MIB, **more)


@pytest.fixture
def bed(node: Node, tmp_path: Path) -> LimitsBed:
    return limits_bed(node, tmp_path / "library")


@pytest.mark.parametrize(
    ("env", "mib"),
    [
        pytest.param({}, 1000, id="no limit in the environment"),
        pytest.param({LIMIT: "700m"}, 700, id="the environment is lower"),
        pytest.param({LIMIT: "2g"}, 1000, id="the environment is higher"),
        pytest.param({LIMIT: "0"}, 1000, id="the environment says unlimited"),
        pytest.param({f"{LIMIT}_0": "600m", "NVIDIA_VISIBLE_DEVICES": A}, 600, id="by device"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "all"}, 1000, id="devices not listed"),
        pytest.param({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/no/such/place"}, 1000, id="counts elsewhere"),
    ],
)  # fmt: skip
def test_the_file_allows_and_the_environment_may_lower(
    bed: LimitsBed, env: dict[str, str], mib: int
) -> None:
    bed.write(gpu())
    said = bed.node.run(ASK, **bed.environment(**env))
    assert (said["init"], said["total"], said["info"]) == (0, mib, [mib, mib])
    assert said["stderr"] == ""


@pytest.mark.parametrize(
    ("before", "mib"),
    [
        pytest.param("v = ctypes.c_int(); cuda.cuDriverGetVersion(ctypes.byref(v))", 700, id="none"),
        pytest.param(f"{NVML}; p.nvmlDeviceGetName(gpu)", 700, id="none of the share"),
        pytest.param(f"{NVML}; p.nvmlDeviceGetMemoryInfo(gpu)", 900, id="of memory"),
        pytest.param(f"{NVML}; p.nvmlDeviceGetMemoryInfo(gpu); os.fork() and os.wait() and os._exit(0)",
                     900, id="of memory, by who forked it"),
    ],
)  # fmt: skip
def test_the_environment_counts_as_it_is_at_the_first_question(
    bed: LimitsBed, before: str, mib: int
) -> None:
    bed.write(gpu())
    code = f"import os\n{before}\nos.environ['{LIMIT}'] = '700m'\n{ASK}"
    said = bed.node.run(code, **bed.environment(**{LIMIT: "900m"}))
    assert (said["init"], said["total"], said["info"]) == (0, mib, [mib, mib])


@pytest.mark.parametrize(
    ("told_mib", "env_mib", "mib"),
    [
        pytest.param(700, 700, 1000, id="what Allocate put there does not lower"),
        pytest.param(700, 600, 600, id="a lower one counts"),
        pytest.param(700, 800, 800, id="one between counts"),
        pytest.param(700, 2000, 1000, id="a higher one does not"),
        pytest.param(0, 700, 700, id="an agent that does not tell"),
    ],
)
def test_a_limit_can_be_raised_above_what_allocate_wrote(
    bed: LimitsBed, told_mib: int, env_mib: int, mib: int
) -> None:
    bed.write(gpu(told_memory_mib=told_mib))
    said = bed.node.run(ASK, **bed.environment(**{f"{LIMIT}_0": f"{env_mib}m"}))
    assert (said["total"], said["info"]) == (mib, [mib, mib])


@pytest.mark.parametrize(
    "visible",
    [
        pytest.param(
            {"NVIDIA_VISIBLE_DEVICES": f"{B},{A}"}, id="uuids, in the order of the claims"
        ),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "0,1"}, id="index strategy"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "all"}, id="all"),
        pytest.param({}, id="CDI alone"),
    ],
)
@pytest.mark.parametrize(
    ("env_mib", "mib"),
    [
        pytest.param((3000, 500), [1000, 4000], id="what Allocate put there does not lower"),
        pytest.param((2500, 500), [1000, 2500], id="a lower one is of its own device"),
    ],
)
def test_gpus_of_unequal_limits_keep_their_own_however_they_are_made_visible(
    bed: LimitsBed, visible: dict[str, str], env_mib: tuple[int, int], mib: list[int]
) -> None:
    """Both were raised since Allocate."""
    bed.node.sim.add_gpu(gpu=SimGpu(uuid=B))
    bed.write(gpu(B, 4000, told_memory_mib=3000), gpu(A, 1000, told_memory_mib=500))
    env = visible | {f"{LIMIT}_{place}": f"{limit}m" for place, limit in enumerate(env_mib)}
    said = bed.node.run(
        "say(init=start(), totals=[total_mib(0), total_mib(1)])", **bed.environment(**env)
    )
    assert (said["init"], said["totals"]) == (0, mib)


def test_a_process_without_environment_is_limited_and_counts_with_the_others(
    bed: LimitsBed,
) -> None:
    bed.write(gpu())
    code = "start()\nprint(alloc(600)[0], flush=True)\ninput()"
    first = bed.node.start(code, env=bed.environment(**{f"{LIMIT}_0": "1000m"}))
    assert first.stdout is not None
    assert first.stdout.readline() == "0\n"
    code = "from cuda_calls import *\nstart()\nsay(used=used_mib(), more=[alloc(600)[0], alloc(400)[0]])"
    # As `env -i`, `su -` and sshd leave it; only the simulated driver must be found.
    env = {**bed.node.sim.environment(), "LD_PRELOAD": str(bed.library), "PYTHONPATH": str(CALLS)}
    second = subprocess.run(
        [sys.executable, "-c", code],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(second.stdout) == {"used": 600, "more": [2, 0]}
    first.communicate("\n", timeout=60)


def test_memory_that_a_process_lowers_is_what_all_may_hold_when_it_asks(bed: LimitsBed) -> None:
    bed.write(gpu())
    code = "start()\nprint(alloc(200)[0], flush=True)\ninput()"
    lowered = bed.environment(**{LIMIT: "400m"})
    first = bed.node.start(code, env=lowered)
    assert first.stdout is not None
    assert first.stdout.readline() == "0\n"
    code = "start()\nsay(total=total_mib(), more=[alloc(201)[0], alloc(200)[0]])"
    assert bed.node.run(code, **lowered) == {"total": 400, "more": [2, 0], "stderr": "", "rc": 0}
    code = "start()\nsay(total=total_mib(), more=[alloc(801)[0], alloc(800)[0]])"
    assert bed.node.run(code, **bed.environment()) == {
        "total": 1000,
        "more": [2, 0],
        "stderr": "",
        "rc": 0,
    }
    first.communicate("\n", timeout=60)


def test_each_device_has_its_line_in_whatever_order(bed: LimitsBed) -> None:
    bed.node.sim.add_gpu(gpu=SimGpu(uuid=B))
    bed.write(gpu(B, 3000), gpu(A, 2000))
    code = "start()\nsay(totals=[total_mib(i) for i in range(2)])"
    assert bed.node.run(code, **bed.environment())["totals"] == [2000, 3000]
    turned = bed.environment(CUDA_VISIBLE_DEVICES="1,0")
    assert bed.node.run(code, **turned)["totals"] == [3000, 2000]
    by_uuid = bed.environment(CUDA_VISIBLE_DEVICES=f"{B},{A}")
    assert bed.node.run(code, **by_uuid)["totals"] == [3000, 2000]


def test_a_device_that_was_not_granted_gets_the_least(bed: LimitsBed) -> None:
    """A privileged container sees GPUs that are not its own."""
    bed.node.sim.add_gpu(gpu=SimGpu(uuid=B))
    bed.write(gpu(A, 2000))
    assert bed.node.run("start(1)\nsay(total=total_mib(1))", **bed.environment())["total"] == 2000


def test_without_a_file_the_environment_decides(bed: LimitsBed) -> None:
    assert bed.node.run(ASK, **bed.environment(**{LIMIT: "700m"}))["total"] == 700
    assert bed.node.run(ASK, **bed.environment())["total"] == 700  # as the first one wrote it down


def _header(at: int, value: int) -> Any:
    def spoil(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        struct.pack_into("<I", raw, at, value)
        path.write_bytes(raw)

    return spoil


def _replaced(make: Any) -> Any:
    def spoil(path: Path) -> None:
        path.rename(path.with_suffix(".good"))
        make(path)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        pytest.param(_header(0, 7), "is not a limits file", id="another magic"),
        pytest.param(_header(4, 2), "has an unknown version", id="version"),
        pytest.param(_header(8, 0), "lists no device", id="no device"),
        pytest.param(_header(8, 17), "lists more devices", id="too many devices"),
        pytest.param(_header(12, 3), "has an unknown core policy", id="core policy"),
        pytest.param(_header(1088, 0x2E2E2F2E), "names a relative usage region", id="relative"),
        pytest.param(_header(LINES_AT, 1), "was left half written", id="half written"),
        pytest.param(lambda path: path.write_bytes(b""), "is too short", id="empty"),
        pytest.param(lambda path: os.truncate(path, 4095), "is too short", id="one byte short"),
        pytest.param(_replaced(Path.mkdir), "is not a regular file", id="directory"),
        pytest.param(_replaced(os.mkfifo), "is not a regular file", id="fifo"),
        pytest.param(
            _replaced(lambda path: path.symlink_to(path.with_suffix(".good"))),
            "cannot be read: Too many levels of symbolic links", id="link",
        ),
    ],
)  # fmt: skip
def test_a_file_that_is_not_in_order_stops_cuda_and_says_why(
    bed: LimitsBed, spoil: Any, complaint: str
) -> None:
    bed.write(gpu())
    spoil(bed.path)
    code = "say(init=cuda.cuInit(0), alloc=alloc(1)[0])"
    said = bed.node.run(code, **bed.environment(LIBCUDA_LOG_LEVEL="1", **{LIMIT: "1g"}))
    assert said["init"] == 1
    assert said["alloc"] != 0
    assert f"{bed.path} {complaint}" in said["stderr"]
    assert "agent has to write it anew" in said["stderr"]
    assert said["rc"] == 0


def test_a_change_holds_from_the_next_call_on(bed: LimitsBed) -> None:
    bed.write(gpu())
    with Talker(bed) as program, bed.line() as line:
        assert program.ask("(alloc(600)[0], info_mib())") == [0, [400, 1000]]
        line.change(800 * MIB)
        assert program.ask("(total_mib(), info_mib(), alloc(201)[0])") == [800, [200, 800], 2]
        line.change(2000 * MIB)
        assert program.ask("(total_mib(), alloc(1400)[0], info_mib())") == [2000, 0, [0, 2000]]


def test_shrunk_below_what_is_used_nothing_more_is_given(bed: LimitsBed) -> None:
    bed.write(gpu())
    with Talker(bed) as program, bed.line() as line:
        assert program.ask("[alloc(100) for _ in range(6)][0][0]") == 0
        address = program.ask("alloc(100)[1]")
        line.change(300 * MIB)
        assert program.ask("(info_mib(), alloc(1)[0])") == [[0, 300], 2]
        assert program.ask(f"(free({address}), alloc(1)[0])") == [0, 2]  # 600 are still too much
        line.change(601 * MIB)
        assert program.ask("(alloc(1)[0], alloc(1)[0])") == [0, 2]


def test_a_line_that_stays_half_written_keeps_what_it_said(bed: LimitsBed) -> None:
    bed.write(gpu())
    with Talker(bed) as program, bed.line() as line:
        line.change(900 * MIB)
        assert program.ask("total_mib()") == 900
        line.begin()
        line.put(5 * MIB)  # and there the agent died
        assert program.ask("(total_mib(), alloc(900)[0])") == [900, 0]
        line.end()  # and another one finished it
        assert program.ask("total_mib()") == 5


def test_the_readers_of_the_usage_region_are_told(bed: LimitsBed) -> None:
    bed.write(gpu(core_permille=305))
    with Talker(bed) as program, bed.line() as line:
        program.ask("alloc(1)[0]")

        def told() -> tuple[int, int]:
            raw = bed.node.cache.read_bytes()
            limit, percent = (
                struct.unpack_from("<Q", raw, 1600),
                struct.unpack_from("<Q", raw, 1728),
            )
            return limit[0] // MIB, percent[0]

        assert told() == (1000, 31)
        line.change(500 * MIB, permille=100)
        program.ask("total_mib()")
        assert told() == (500, 10)


def test_no_reader_sees_half_a_change(bed: LimitsBed) -> None:
    """The agent changes the line as fast as it can; each total is one or the other."""
    small, large = 0x0000_0001_0010_0000, 0x0000_0002_0030_0000  # differ in both halves
    bed.write(gpu(mib=small // MIB))
    code = (
        "start()\nseen = {}\nimport time\nends = time.monotonic() + 1.5\n"
        "while time.monotonic() < ends:\n"
        "    total = ctypes.c_size_t()\n"
        "    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)\n"
        "    seen[total.value] = seen.get(total.value, 0) + 1\n"
        "say(seen=sorted(seen))"
    )
    program = bed.node.start(code, env=bed.environment())
    with bed.line() as line:
        while program.poll() is None:
            line.change(large)
            line.change(small)
    out, _ = program.communicate(timeout=60)
    assert json.loads(out)["seen"] == [small, large]


def test_a_line_that_changes_while_it_is_read_is_read_anew() -> None:
    """Right before any of its eight words; the ninth time it stays as it was."""
    flags = (f"-I{ROOT / 'hook'}", "-ffunction-sections", "-Wl,--gc-sections", "-pthread")
    ran = subprocess.run(
        [compiled("torn_line.c", *flags)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["12222"] * 8 + ["11111"]


# --- shares of time -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hook with limits_core to be called."""
    path = tmp_path_factory.mktemp("open") / "libvgpu.so"
    names = path.with_name("open.map")
    names.write_text(
        "{ global: cu*; nvml*; dlopen; dlsym; dlvsym; vgpu_bind_deep; limits_core; local: *; };\n"
    )
    artifact = next(a for a in compiler().ARTIFACTS if a.path == "libvgpu.so")
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    target = f"{platform.machine()}-linux-gnu.{compiler().GLIBC}"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags, "-shared",
         "-Wl,-Bsymbolic", f"-Wl,--version-script={names}", *artifact.sources,
         *compiler().LINK_FLAGS, "-o", str(path)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    return path


SHARE = "from core_shares import *\nstart(); info_mib()\n"


def shares(bed: LimitsBed, library: Path, code: str = "say(share=share())", **env: str) -> Any:
    """What the hook makes of the shares, asked from inside."""
    bed.library.write_bytes(library.read_bytes())
    path = f"{CALLS}:{ROOT / 'tests'}:{ROOT}"
    said = bed.node.run(SHARE + code, **bed.environment(PYTHONPATH=path, **env))
    assert "share" in said, said
    return said["share"]


UNLISTED = {"NVIDIA_VISIBLE_DEVICES": "all"}
POLICY, SM = "GPU_CORE_UTILIZATION_POLICY", "CUDA_DEVICE_SM_LIMIT"


@pytest.mark.parametrize(
    ("env", "enforced", "permille"),
    [
        pytest.param({}, False, 1000, id="no limit"),
        pytest.param({SM: "30"}, True, 300, id="for all devices"),
        pytest.param({SM: "30", f"{SM}_0": "60"}, True, 600, id="of its own"),
        pytest.param({SM: "30", f"{SM}_1": "60"}, True, 300, id="another device's"),
        pytest.param(
            {**UNLISTED, f"{SM}_0": "60", f"{SM}_1": "30"},
            True,
            300,
            id="the least of those not listed",
        ),
        pytest.param({**UNLISTED, SM: "50", f"{SM}_1": "80"}, True, 500, id="or the one for all"),
        pytest.param({SM: "100"}, False, 1000, id="all of it"),
        pytest.param({SM: "0"}, False, 1000, id="0 is no limit"),
        pytest.param({SM: "30", POLICY: "disable"}, False, 300, id="never kept"),
        pytest.param({SM: "30", POLICY: "FORCE"}, True, 300, id="always kept"),
        pytest.param({SM: "30", POLICY: "whatever"}, True, 300, id="another policy"),
    ],
)
def test_a_share_comes_from_the_environment_where_there_is_no_file(
    bed: LimitsBed, open_library: Path, env: dict[str, str], enforced: bool, permille: int
) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": A, **env}
    assert shares(bed, open_library, **env)[:2] == [enforced, permille]


@pytest.mark.parametrize(
    ("permille", "policy", "env", "enforced", "expected"),
    [
        pytest.param(300, CorePolicy.DEFAULT, {}, True, 300, id="the file's"),
        pytest.param(0, CorePolicy.DEFAULT, {}, False, 1000, id="none in the file"),
        pytest.param(0, CorePolicy.DEFAULT, {SM: "50"}, True, 500, id="only the environment's"),
        pytest.param(300, CorePolicy.DEFAULT, {SM: "20"}, True, 200, id="the environment is lower"),
        pytest.param(300, CorePolicy.DEFAULT, {SM: "80"}, True, 300, id="it is higher"),
        pytest.param(300, CorePolicy.DEFAULT, {POLICY: "disable"}, True, 300, id="it would not keep it"),
        pytest.param(300, CorePolicy.DISABLE, {}, False, 300, id="the agent does not keep it"),
        pytest.param(300, CorePolicy.DISABLE, {POLICY: "force"}, True, 300, id="the program does"),
        pytest.param(300, CorePolicy.FORCE, {POLICY: "disable"}, True, 300, id="the agent always does"),
    ],
)  # fmt: skip
def test_a_share_of_the_file_may_only_be_lowered(
    bed: LimitsBed, open_library: Path, permille: int, policy: CorePolicy,
    env: dict[str, str], enforced: bool, expected: int,
) -> None:  # fmt: skip
    bed.write(gpu(core_permille=permille), core_policy=policy)
    assert shares(bed, open_library, **env)[:2] == [enforced, expected]


@pytest.mark.parametrize(
    ("told", "env", "expected"),
    [
        pytest.param(300, "30", 500, id="what Allocate put there does not lower"),
        pytest.param(300, "20", 200, id="a lower one counts"),
        pytest.param(300, "40", 400, id="one between counts"),
        pytest.param(300, "80", 500, id="a higher one does not"),
        pytest.param(1000, "0", 500, id="none was put there"),
        pytest.param(0, "30", 300, id="an agent that does not tell"),
    ],
)
def test_a_share_can_be_raised_above_what_allocate_wrote(
    bed: LimitsBed, open_library: Path, told: int, env: str, expected: int
) -> None:
    bed.write(gpu(core_permille=500, told_core_permille=told))
    assert shares(bed, open_library, **{SM: env})[:2] == [True, expected]


@pytest.mark.parametrize("visible", ["0,1", "all"])
def test_a_share_of_its_own_is_of_the_device_in_its_line(
    bed: LimitsBed, open_library: Path, visible: str
) -> None:
    bed.node.sim.add_gpu(gpu=SimGpu(uuid=B))
    bed.write(gpu(B, core_permille=500), gpu(A, core_permille=900))
    env = {"NVIDIA_VISIBLE_DEVICES": visible, f"{SM}_0": "20", f"{SM}_1": "70"}
    assert shares(bed, open_library, "say(share=share(1))", **env)[:2] == [True, 700]


@pytest.mark.parametrize(
    ("policy", "enforced"),
    [
        pytest.param("", False, id="default follows it"),
        pytest.param("force", True, id="force does not"),
    ],
)
def test_the_monitors_switch_decides_by_default(
    bed: LimitsBed, open_library: Path, policy: str, enforced: bool
) -> None:
    code = (
        f"with open({str(bed.node.cache)!r}, 'r+b') as region:\n"
        "    os.pwrite(region.fileno(), bytes(4), 2008900)\n"
        "say(share=share())"
    )
    env = {SM: "30", **({POLICY: policy} if policy else {})}
    assert shares(bed, open_library, code, **env)[:2] == [enforced, 300]


def test_what_is_lent_and_blocked_is_passed_on_live(bed: LimitsBed, open_library: Path) -> None:
    bed.write(gpu(core_permille=300, lent_permille=200, lent_until_ns=12345))
    code = (
        "before = share()\n"
        f"change_line({str(bed.path)!r}, 0, permille=400, blocked=99)\n"
        "say(share=[before, share()])"
    )
    assert shares(bed, open_library, code) == [
        [True, 300, 200, 12345, 0],
        [True, 400, 0, 0, 99],
    ]


@pytest.mark.parametrize(
    ("permille", "percent", "expected"),
    [
        pytest.param(300, "10", [100, 300], id="lowered: for the process"),
        pytest.param(300, "40", [300, 300], id="not raised"),
        pytest.param(1000, "10", [100, 1000], id="where the container has no limit"),
    ],
)
def test_what_a_process_lowers_is_its_own_share_only(
    bed: LimitsBed, open_library: Path, permille: int, percent: str, expected: list[int]
) -> None:
    bed.write(gpu(core_permille=permille))
    code = "say(share=[share()[1], container_permille()])"
    assert shares(bed, open_library, code, CUDA_DEVICE_SM_LIMIT=percent) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param((gpu(core_permille=300),), [True, 300], id="the only one's"),
        pytest.param((gpu(core_permille=300), gpu(C, core_permille=200)), [True, 200], id="lower"),
        pytest.param((gpu(core_permille=300), gpu(C)), [True, 300], id="another has none"),
        pytest.param((gpu(),), [False, 1000], id="none has one"),
    ],
)
def test_a_device_that_was_not_granted_gets_the_least_share(
    bed: LimitsBed, open_library: Path, listed: tuple[DeviceLimit, ...], expected: list[Any]
) -> None:
    bed.node.sim.add_gpu(gpu=SimGpu(uuid=B))
    bed.write(*listed)
    assert share_of_b(bed, open_library)[:2] == expected


@pytest.mark.parametrize(
    ("listed", "until_ns"),
    [
        pytest.param((gpu(), gpu(C)), 0, id="none is"),
        pytest.param((gpu(), gpu(C, blocked_until_ns=99)), 99, id="one is"),
        pytest.param(
            (gpu(blocked_until_ns=98), gpu(C, blocked_until_ns=99)), 99, id="the later end"
        ),
    ],
)
def test_a_device_that_was_not_granted_is_blocked_while_one_that_was_is(
    bed: LimitsBed, open_library: Path, listed: tuple[DeviceLimit, ...], until_ns: int
) -> None:
    bed.node.sim.add_gpu(gpu=SimGpu(uuid=B))
    bed.write(*listed)
    assert share_of_b(bed, open_library)[4] == until_ns


def share_of_b(bed: LimitsBed, library: Path) -> list[Any]:
    """Of the second GPU, at whatever place it is known."""
    code = (
        "cuda.cuDeviceTotalMem_v2(ctypes.byref(ctypes.c_size_t()), 1)\n"
        f"region = open({str(bed.node.cache)!r}, 'rb').read()\n"
        f"uuids = [region[64 + 96 * i:][:40].decode() for i in range(16)]\n"
        f"say(share=share(uuids.index({B!r})))"
    )
    return shares(bed, library, code)


def test_a_malformed_share_stops_cuda(node: Node) -> None:
    said = node.run(
        "say(init=cuda.cuInit(0))", CUDA_DEVICE_SM_LIMIT_1="half", LIBCUDA_LOG_LEVEL="1"
    )
    assert said["init"] == 1
    assert (
        "CUDA_DEVICE_SM_LIMIT_1=half is not a share of a GPU; write a percentage" in said["stderr"]
    )


# --- MIG ------------------------------------------------------------------------------------------


def test_a_mig_device_is_known_by_its_own_uuid(bed: LimitsBed) -> None:
    mig = "MIG-0123abcd-4567-89ab-cdef-0123456789ab"
    bed.node.sim.change_gpu(
        0, SimGpu(uuid=A, mig=True, migs=(SimMig(position=0, uuid=mig, gpu_instance=7),))
    )
    bed.write(DeviceLimit(uuid=mig, memory_limit_bytes=700 * MIB))
    said = bed.node.run("start()\nalloc(1)\nsay(total=total_mib())", **bed.environment())
    assert said["total"] == 700
    region = bed.node.cache.read_bytes()
    assert region[64 : 64 + 40].decode() == mig
