"""What the environment allows, and what programs are then told and given."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hooked_programs import LIMIT, Node
from limits_bed import limits_bed

from agent.domain.limits_file import DeviceLimit
from agent.sim.driver import SimGpu, made_up_uuid

ASK = "say(init=start(), total=total_mib(), info=info_mib())"
A, B = made_up_uuid(0), made_up_uuid(1)
FULL = 46068


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        pytest.param("4096m", 4096, id="m, as the scheduler writes it"),
        pytest.param("4096M", 4096, id="M"),
        pytest.param("4g", 4096, id="g"),
        pytest.param("4G", 4096, id="G"),
        pytest.param("4Gi", 4096, id="Gi"),
        pytest.param("4GB", 4096, id="GB"),
        pytest.param("4gib", 4096, id="gib"),
        pytest.param("4096MB", 4096, id="MB"),
        pytest.param("4096Mi", 4096, id="Mi"),
        pytest.param("4194304k", 4096, id="k"),
        pytest.param("4194304KB", 4096, id="KB"),
        pytest.param("4294967296", 4096, id="bytes"),
        pytest.param("4294967296B", 4096, id="bytes, said so"),
        pytest.param("4.5g", 4608, id="a fraction"),
        pytest.param(" 4g", 4096, id="a blank before"),
        pytest.param("4 GiB", 4096, id="a blank between"),
        pytest.param("+4g", 4096, id="a plus"),
        pytest.param("0x1000m", 4096, id="hexadecimal"),
        pytest.param("010m", 10, id="a leading zero is no octal"),
        pytest.param("0", FULL, id="0 is no limit"),
        pytest.param("0m", FULL, id="0m is no limit"),
        pytest.param("", FULL, id="empty is no limit"),
        pytest.param("100g", FULL, id="more than there is"),
        pytest.param("8t", FULL, id="far more than there is"),
    ],
)
def test_a_limit_is_what_the_program_sees_as_its_gpu(node: Node, text: str, mib: int) -> None:
    said = node.run(ASK, CUDA_DEVICE_MEMORY_LIMIT_0=text)
    assert (said["init"], said["total"], said["info"]) == (0, mib, [mib, mib])
    assert said["stderr"] == ""


@pytest.mark.parametrize(
    ("limit_mib", "seen_mib"),
    [
        pytest.param(FULL, FULL - 568, id="all that NVML tells"),
        pytest.param(FULL - 568, FULL - 568, id="all that can be had"),
        pytest.param(FULL - 569, FULL - 569, id="less"),
    ],
)
def test_what_the_driver_keeps_is_not_in_what_a_program_sees(
    node: Node, limit_mib: int, seen_mib: int
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=A, reserved_mib=568))
    said = node.run(ASK, **{LIMIT: f"{limit_mib}m"})
    assert (said["init"], said["total"], said["info"]) == (0, seen_mib, [seen_mib, seen_mib])


@pytest.mark.parametrize("variable", [LIMIT, f"{LIMIT}_0", f"{LIMIT}_15"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("-1", id="negative"),
        pytest.param("abc", id="no number"),
        pytest.param("m", id="only a unit"),
        pytest.param("4x", id="unknown unit"),
        pytest.param("4gg", id="two units"),
        pytest.param("4g 5g", id="two amounts"),
        pytest.param("1.m", id="a point and nothing"),
        pytest.param("1.5", id="half a byte"),
        pytest.param("0xm", id="hexadecimal without digits"),
        pytest.param("0x-1m", id="hexadecimal and negative"),
        pytest.param("99999999999999999999g", id="too many digits"),
        pytest.param("99999999999g", id="more than 64 bits"),
        pytest.param("4096m;", id="a stray mark"),
        pytest.param("0.0001k", id="less than a byte"),
        pytest.param("0.0000001g", id="lost behind the sixth digit"),
        pytest.param("nan", id="not a number"),
    ],
)
def test_a_malformed_limit_never_means_unlimited(node: Node, variable: str, text: str) -> None:
    code = "say(init=cuda.cuInit(0), alloc=alloc(1)[0])"
    said = node.run(code, **{variable: text})
    assert said["init"] == 1  # CUDA_ERROR_INVALID_VALUE
    assert said["alloc"] != 0
    assert said["rc"] == 0


@pytest.mark.parametrize("full", [False, True], ids=["whose reader is gone", "that is full"])
def test_a_pipe_neither_ends_nor_holds_up_who_tells_it_of_a_limit(node: Node, full: bool) -> None:
    """A program that has not changed what SIGPIPE does, as Python has, would be ended by it."""
    read, write = os.pipe()
    with contextlib.suppress(BlockingIOError):
        os.set_blocking(write, False)
        while full:
            os.write(write, b"\n" * 4096)
    os.set_blocking(write, True)
    if not full:
        os.close(read)
    code = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nsay(init=cuda.cuInit(0))"
    done = subprocess.run(
        [sys.executable, "-c", f"from cuda_calls import *\n{code}"],
        env=node.environment(**{LIMIT: "half"}),
        stdout=subprocess.PIPE, stderr=write, text=True, timeout=30, check=False,
    )  # fmt: skip
    for end in (write, read) if full else (write,):
        os.close(end)
    assert done.returncode == 0
    assert json.loads(done.stdout)["init"] == 1  # CUDA_ERROR_INVALID_VALUE


@pytest.mark.parametrize(
    ("at", "most_bytes"),
    [pytest.param(0, 0, id="at all"), pytest.param(4096, 4096, id="and was cut short since")],
)
def test_a_file_that_may_not_grow_does_not_end_who_is_told_of_a_limit(
    node: Node, tmp_path: Path, at: int, most_bytes: int
) -> None:
    """To write past RLIMIT_FSIZE ends a program that has not changed what SIGXFSZ does."""
    code = (
        "import os, resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        f"os.lseek(2, {at}, 0); resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes},) * 2)\n"
        "say(init=cuda.cuInit(0))"
    )
    with (tmp_path / "stderr").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", f"from cuda_calls import *\n{code}"],
            env=node.environment(**{LIMIT: "half"}),
            stdout=subprocess.PIPE, stderr=file, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout)["init"] == 1  # CUDA_ERROR_INVALID_VALUE


def test_a_malformed_limit_gives_nothing_to_who_started_cuda_past_us(node: Node) -> None:
    code = (
        "from memory_calls import *\n"
        "r = [cuda.cuInit(0), unseen('cuInit', ctypes.c_uint)(0)]; c = ctypes.c_void_p()\n"
        "r += [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0), cuda.cuCtxSetCurrent(c)]\n"
        "say(r=[*r, alloc(20000)[0], held_mib()])"
    )
    assert node.run(code, **{LIMIT: "1000x"})["r"] == [1, 0, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("text", "init"),
    [
        pytest.param("30", 0, id="in order"),
        pytest.param("0.00000001", 1, id="nothing is left of it"),
        pytest.param("-30", 1, id="negative"),
        pytest.param("nan", 1, id="not a number"),
    ],
)
@pytest.mark.parametrize("variable", ["CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_15"])
def test_a_malformed_share_never_means_all_of_the_gpu(
    node: Node, variable: str, text: str, init: int
) -> None:
    said = node.run("say(init=cuda.cuInit(0))", **{variable: text})
    assert said["init"] == init
    complaint = f"{variable}={text} is not a share of a GPU; write a percentage"
    assert (complaint in said["stderr"]) == (init != 0)


LOOK = (
    "import pynvml; pynvml.nvmlInit()\n"
    "pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))\n"
)


@pytest.mark.parametrize(
    ("before", "at_fault"),
    [
        pytest.param("", "/etc/vgpu.limits cannot be read: ", id="from the start"),
        pytest.param(
            LOOK, "device memory cannot be counted in {}: ", id="once the limits are read"
        ),
    ],
)
@pytest.mark.parametrize("makes_region", [False, True])
def test_that_no_descriptor_is_left_is_nobodys_fault_but_the_programs(
    node: Node, tmp_path: Path, before: str, at_fault: str, makes_region: bool
) -> None:
    bed = limits_bed(node, tmp_path / "library")
    bed.write(DeviceLimit(uuid=A, memory_limit_bytes=1 << 30), makes_region=makes_region)
    code = (
        f"import resource\n{before}"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))\n"
        "say(init=cuda.cuInit(0))"
    )
    said = node.run(code, **bed.environment())
    assert said["init"] in {1, 304}
    shortage = "Too many open files; close some, or raise their limit (ulimit -n)"
    assert said["stderr"].rstrip().endswith(at_fault.format(node.cache) + shortage)


@pytest.mark.parametrize("level", ["", "0", "4", "-1"])
def test_why_cuda_does_not_start_is_said_once(node: Node, level: str) -> None:
    """A CUresult alone tells nobody what to write instead, so this line comes at every log level."""
    code = "say(init=[cuda.cuInit(0), cuda.cuInit(0)])"
    said = node.run(code, CUDA_DEVICE_MEMORY_LIMIT_0="4x", LIBCUDA_LOG_LEVEL=level)
    assert (said["init"], said["stderr"].count("\n")) == ([1, 1], 1)
    assert f"{LIMIT}_0=4x is not an amount of memory; write for example 4096m" in said["stderr"]


def test_what_is_said_is_one_line_of_text(node: Node) -> None:
    """The environment is the image's as well: a log is not to show a line that we did not write."""
    said = node.run(
        "say(init=cuda.cuInit(0))", CUDA_DEVICE_MEMORY_LIMIT_0="4x\n[vgpu] error 1 \x1b[2J"
    )
    assert (said["init"], said["stderr"].count("\n")) == (1, 1)
    assert f"{LIMIT}_0=4x?[vgpu] error 1 ?[2J is not an amount of memory" in said["stderr"]


@pytest.mark.parametrize(
    ("level", "lines"), [("", 0), ("0", 0), ("1", 0), ("2", 1), ("3", 1), ("4", 1), ("x", 0)]
)
def test_what_is_refused_is_said_from_level_2_on(node: Node, level: str, lines: int) -> None:
    code = "start()\nsay(given=alloc(4)[0])"
    said = node.run(code, **{LIMIT: "3m"}, LIBCUDA_LOG_LEVEL=level)
    assert (said["given"], said["stderr"].count("\n")) == (2, lines)
    names = "cuMemAlloc_v2: 4194304 bytes refused, 0 of 3145728 in use\n"
    assert said["stderr"].endswith(names if lines else "")


def test_who_comes_later_is_told_that_another_limit_holds(node: Node) -> None:
    """Without a limits file it is the one that the first process had, though that may have ended long ago."""
    ask = {"LIBCUDA_LOG_LEVEL": "2", "NVIDIA_VISIBLE_DEVICES": A}
    assert node.run(ASK, **{LIMIT: "2g"}, **ask)["stderr"] == ""
    same, none, other = (node.run(ASK, **{LIMIT: text}, **ask) for text in ("2048m", "", "1g"))
    assert [said["total"] for said in (same, none, other)] == [2048] * 3
    assert [said["stderr"] for said in (same, none)] == [""] * 2
    assert other["stderr"].endswith(
        f"{node.cache} limits {A} to 2147483648 bytes, not the environment's 1073741824, "
        "until it is deleted\n"
    )
    assert node.run(ASK, **{LIMIT: "1g"})["stderr"] == ""
    node.cache.unlink()
    assert node.run(ASK, **{LIMIT: "1g"}, **ask)["total"] == 1024


def test_a_cache_file_that_cannot_be_had_stops_cuda_and_not_the_program(node: Node) -> None:
    cache = str(node.cache / "no" / "such" / "directory")
    env = {LIMIT: "1g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": cache, "LIBCUDA_LOG_LEVEL": "1"}
    said = node.run("say(init=cuda.cuInit(0))", **env)
    assert (said["init"], said["rc"]) == (304, 0)  # CUDA_ERROR_OPERATING_SYSTEM
    assert f"cannot count memory in {cache}" in said["stderr"]


def test_a_cache_file_that_is_another_from_each_directory_is_refused(node: Node) -> None:
    """Who had changed to another had another budget."""
    env = {LIMIT: "1g", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "here.cache"}
    said = node.run("say(init=cuda.cuInit(0))", **env)
    assert said["init"] == 1
    complaint = "CUDA_DEVICE_MEMORY_SHARED_CACHE=here.cache is no absolute path; begin it with /"
    assert complaint in said["stderr"]


def test_why_cuda_does_not_start_is_said_by_each_process(node: Node) -> None:
    """A child's output may go elsewhere."""
    code = "cuda.cuInit(0)\nif not os.fork():\n    cuda.cuInit(0); os._exit(0)\nos.wait(); say()"
    said = node.run(f"import os\n{code}", CUDA_DEVICE_MEMORY_LIMIT_0="4x")
    assert said["stderr"].count("4x is not an amount of memory") == 2


def test_a_cache_file_that_is_a_link_is_not_followed(node: Node) -> None:
    target = node.cache.with_name("precious")
    target.write_text("keep me")
    node.cache.symlink_to(target)
    assert node.run("say(init=cuda.cuInit(0))", **{LIMIT: "1g"})["init"] == 304
    assert target.read_text() == "keep me"


def test_a_file_of_another_layout_is_left_alone(node: Node) -> None:
    node.cache.write_bytes(b"not a region" * 1000)
    assert node.run("say(init=cuda.cuInit(0))", **{LIMIT: "1g"})["init"] == 304
    assert node.cache.read_bytes().startswith(b"not a region")


@pytest.mark.parametrize(
    ("env", "totals"),
    [
        pytest.param({f"{LIMIT}_0": "1g", f"{LIMIT}_1": "2g"}, [1024, 2048], id="in order"),
        pytest.param(
            {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "2g", "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"},
            [1024, 2048], id="listed by uuid",
        ),
        pytest.param(
            {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "2g", "NVIDIA_VISIBLE_DEVICES": f"{B},{A}"},
            [2048, 1024], id="listed the other way round",
        ),
        pytest.param(
            {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "2g", "NVIDIA_VISIBLE_DEVICES": f"{A},{B}",
             "CUDA_VISIBLE_DEVICES": "1,0"},
            [2048, 1024], id="renumbered by the program",
        ),
        pytest.param(
            {f"{LIMIT}_0": "1g", f"{LIMIT}_1": "2g", "NVIDIA_VISIBLE_DEVICES": f"{A},{B}",
             "CUDA_VISIBLE_DEVICES": "1"},
            [2048], id="one hidden by the program",
        ),
        pytest.param(
            {LIMIT: "3g", f"{LIMIT}_1": "2g", "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"},
            [3072, 2048], id="a limit for all others",
        ),
        pytest.param(
            {f"{LIMIT}_1": "2g", "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"},
            [FULL, 2048], id="only one is limited",
        ),
        pytest.param(
            {f"{LIMIT}_0": "0m", LIMIT: "3g", "NVIDIA_VISIBLE_DEVICES": f"{A},{B}"},
            [3072, 3072], id="0 falls back to the limit for all",
        ),
    ],
)  # fmt: skip
def test_each_device_has_the_limit_of_its_uuid(
    node: Node, env: dict[str, str], totals: list[int]
) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=B))
    if "NVIDIA_VISIBLE_DEVICES" not in env:  # then nobody knows which is which
        totals = [min(totals)] * len(totals)
    code = f"start()\nsay(totals=[total_mib(i) for i in range({len(totals)})])"
    assert node.run(code, **env)["totals"] == totals


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param([made_up_uuid(place) for place in range(2, 18)] + [A], id="17 devices"),
        pytest.param([B, "GPU-" + "a" * 200, A], id="a uuid too long"),
        pytest.param([B, "0", A], id="a number among them"),
    ],
)
def test_a_list_that_is_none_gives_each_device_the_smallest_limit(
    node: Node, listed: list[str]
) -> None:
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(listed), f"{LIMIT}_0": "2g", f"{LIMIT}_1": "1g"}
    said = node.run(ASK, **env)
    assert (said["init"], said["total"]) == (0, 1024)


def test_a_mig_device_has_its_place_in_the_list(node: Node) -> None:
    listed = f"MIG-0123abcd-4567-89ab-cdef-0123456789ab,{A}"
    env = {"NVIDIA_VISIBLE_DEVICES": listed, f"{LIMIT}_0": "600m", f"{LIMIT}_1": "700m"}
    assert node.run(ASK, **env)["total"] == 700


def test_devices_that_differ_in_one_digit_are_two(node: Node) -> None:
    twin = A[:-1] + ("0" if A[-1] != "0" else "1")
    node.sim.add_gpu(gpu=SimGpu(uuid=twin))
    env = {"NVIDIA_VISIBLE_DEVICES": f"{A},{twin}", f"{LIMIT}_0": "1g", f"{LIMIT}_1": "2g"}
    code = "start()\nsay(totals=[total_mib(i) for i in range(2)])"
    assert node.run(code, **env)["totals"] == [1024, 2048]


def test_without_limits_and_cache_the_hook_steps_aside(node: Node) -> None:
    env = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": ""}
    said = node.run("start()\nsay(alloc=alloc(40000)[0], info=info_mib())", **env)
    assert (said["alloc"], said["info"]) == (0, [6068, FULL])
    assert not node.cache.exists()


def test_without_limits_usage_is_still_counted(node: Node) -> None:
    said = node.run("start()\nsay(alloc=alloc(100)[0], used=used_mib())")
    assert (said["alloc"], said["used"]) == (0, 100)
    assert node.cache.exists()


@pytest.mark.parametrize(
    ("env", "given"),
    [
        pytest.param({}, [0, 0, 0, 0, 0], id="nothing limited"),
        pytest.param({"CUDA_DEVICE_SM_LIMIT": "50"}, [0, 0, 0, 0, 0], id="a share of time"),
        pytest.param({LIMIT: "1g"}, [0, 2, 2, 2, 0], id="a limit for each"),
        pytest.param({f"{LIMIT}_3": "1g"}, [0, 2, 2, 2, 0], id="a limit for one"),
    ],
)
def test_a_device_more_than_are_counted_works_where_no_memory_is_limited(
    node: Node, env: dict[str, str], given: list[int]
) -> None:
    for number in range(1, 17):
        node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(number)))
    code = (
        "from memory_calls import *\n"
        "first = [start(d) for d in range(16)]\n"
        "a, h = ctypes.c_uint64(), ctypes.c_uint64()\n"
        "r = [start(16)]\n"
        "e, p = alloc(10); r.append(e); e or cuda.cuMemFree_v2(u64(p))\n"
        "e = cuda.cuMemAllocAsync(ctypes.byref(a), u64(10 * MIB), None); r.append(e)\n"
        "e or cuda.cuMemFreeAsync(a, None)\n"
        "e, h = create(10, device=16); r.append(e); e or release(h)\n"
        "start(0); r.append(alloc(10)[0])\n"
        "say(r=r, first=first)"
    )
    said = node.run(code, **env)
    assert (said.get("r"), said.get("first")) == (given, [0] * 16), said["stderr"]


@pytest.mark.parametrize(
    ("env", "free_mib"),
    [
        pytest.param({}, 68, id="no more than the GPU has left"),
        pytest.param({"CUDA_OVERSUBSCRIBE": "true"}, 1024, id="what spills needs none of it"),
    ],
)
@pytest.mark.parametrize("function", ["cuMemGetInfo", "cuMemGetInfo_v2"])
def test_what_is_free_beside_one_who_has_nearly_all(
    node: Node, env: dict[str, str], free_mib: int, function: str
) -> None:
    """Who sizes a cache by it would be refused memory that it was told of."""
    node.sim.process(0, 4242, FULL - 68)
    code = (
        "start(); room, total = ctypes.c_size_t(), ctypes.c_size_t()\n"
        f"cuda.{function}(ctypes.byref(room), ctypes.byref(total))\n"
        "say(info=[room.value // MIB, total.value // MIB])"
    )
    assert node.run(code, **{LIMIT: "1g", **env})["info"] == [free_mib, 1024]


@pytest.mark.parametrize(
    ("asked", "told_mib"),
    [
        pytest.param("None, ctypes.byref(said)", 1024, id="the total alone, as OptiX"),
        pytest.param("ctypes.byref(said), None", 924, id="what is free alone"),
    ],
)
@pytest.mark.parametrize("function", ["cuMemGetInfo", "cuMemGetInfo_v2"])
def test_who_asks_for_one_of_the_two_figures_is_told_the_shares(
    node: Node, asked: str, told_mib: int, function: str
) -> None:
    code = (
        "start(); alloc(100); said = ctypes.c_size_t()\n"
        f"result = cuda.{function}({asked})\n"
        "say(result=result, said=said.value // MIB)"
    )
    said = node.run(code, **{LIMIT: "1g"})
    assert (said["result"], said["said"], said["rc"]) == (0, told_mib, 0)


@pytest.mark.parametrize("version", ["", "_v2"])
def test_nvml_tells_the_same_story(node: Node, version: str) -> None:
    code = (
        "import pynvml\n"
        "start(); alloc(300)\n"
        "pynvml.nvmlInit(); handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        f"memory = pynvml.nvmlDeviceGetMemoryInfo(handle, {'pynvml.nvmlMemory_v2' if version else None})\n"
        "say(memory=[memory.total // MIB, memory.used // MIB, memory.free // MIB])"
    )
    assert node.run(code, **{LIMIT: "1000m"})["memory"] == [1000, 300, 700]


def test_nvml_alone_needs_no_cuda(node: Node) -> None:
    """As nvidia-smi in a container, which never calls cuInit."""
    code = (
        "import pynvml\n"
        "pynvml.nvmlInit(); handle = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "memory = pynvml.nvmlDeviceGetMemoryInfo(handle)\n"
        "say(memory=[memory.total // MIB, memory.used // MIB, memory.free // MIB])"
    )
    tenant = node.start(
        "start(); alloc(300); print('ready', flush=True); input()", env={LIMIT: "1000m"}
    )
    assert tenant.stdout is not None
    assert tenant.stdout.readline() == "ready\n"
    assert node.run(code, **{LIMIT: "1000m"})["memory"] == [1000, 300, 700]
    tenant.communicate("\n", timeout=60)


def test_nothing_of_the_host_process_is_changed(node: Node) -> None:
    code = (
        "import os, signal\n"
        "def state():\n"
        "    mask = os.umask(0); os.umask(mask)\n"
        "    return [mask, [str(signal.getsignal(s)) for s in (10, 12, 15)], len(os.listdir('/proc/self/fd')),\n"
        "            len(os.listdir('/proc/self/task')), sorted(os.environ)]\n"
        "before = state(); start(); alloc(1); info_mib(); after = state()\n"
        "say(before=before, after=after)"
    )
    said = node.run(code, **{LIMIT: "1g"})
    assert said["before"][:2] == said["after"][:2]
    assert said["before"][3:] == said["after"][3:]
    without = node.run(code, hook=False)
    opened = said["after"][2] - said["before"][2]
    # NVML, which is asked what a context costs, keeps the simulated node's state open for itself.
    assert opened - (without["after"][2] - without["before"][2]) in {0, 1}
