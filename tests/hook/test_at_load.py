"""Calls of the driver from threads that a library's constructor or destructor waits for.

The loader holds its lock meanwhile. The driver's calls take none of it once CUDA has started, so
such programs work; a thread of ours that looks something up then would wait for ever.
"""

import shutil
from pathlib import Path

import pytest
from c_programs import library
from hooked_programs import LIMIT, Node

START = "start()\n"
NO_CONTEXT = "cuda.cuInit(0)\n"
ENDED_IF_STUCK = "import signal\nsignal.alarm(30)\n"


def plugin(node: Node, call: str, *flags: str) -> Path:
    """A library that makes one of the calls of at_load.c."""
    driver = str(node.sim.libraries / "libcuda.so.1")
    return library("at_load.c", f"-DCALL={call}", *flags, driver, "-lpthread", name="libplugin.so")


def loads(path: Path) -> str:
    """Code that opens it, and says what its call gave."""
    return (
        f"plugin = ctypes.CDLL({str(path)!r})\n"
        "say(result=ctypes.c_int.in_dll(plugin, 'own_result').value)"
    )


@pytest.mark.parametrize(
    ("before", "call"),
    [
        pytest.param(START, "allocate", id="memory"),
        pytest.param(START, "from_pool", id="memory of a pool"),
        pytest.param(START, "physical", id="physical memory"),
        pytest.param(START, "graph", id="a graph with memory"),
        pytest.param(START, "launch", id="a launch"),
        pytest.param(NO_CONTEXT, "look", id="a context"),
    ],
)
def test_the_first_of_its_kind_may_come_while_a_library_is_loaded(
    node: Node, before: str, call: str
) -> None:
    node.sim.kernel_us(50)
    code = ENDED_IF_STUCK + before + loads(plugin(node, call))
    said = node.run(code, **{LIMIT: "1000m", "CUDA_DEVICE_SM_LIMIT": "50"})
    assert (said["rc"], said["stderr"], said.get("result")) == (0, "", 0)


def test_the_first_of_its_kind_may_come_while_a_library_is_unloaded(node: Node) -> None:
    path = plugin(node, "from_pool", "-DAT_END")
    code = ENDED_IF_STUCK + START + (
        f"import _ctypes\nplugin, result = ctypes.CDLL({str(path)!r}), ctypes.c_int(-1)\n"
        "ctypes.c_void_p.in_dll(plugin, 'result').value = ctypes.addressof(result)\n"
        "_ctypes.dlclose(plugin._handle)\nsay(result=result.value)"
    )  # fmt: skip
    said = node.run(code, **{LIMIT: "1000m"})
    assert (said["rc"], said["stderr"], said.get("result")) == (0, "", 0)


# --- without NVML --------------------------------------------------------------------------------


@pytest.fixture
def without_nvml(node: Node, tmp_path: Path) -> dict[str, str]:
    """Settings of a container that has libcuda alone."""
    (tmp_path / "lib").mkdir()
    shutil.copy(node.sim.libraries / "libcuda.so.1", tmp_path / "lib")
    return {LIMIT: "1000m", "LD_LIBRARY_PATH": str(tmp_path / "lib")}


def test_an_nvml_that_is_not_there_is_not_looked_for_while_a_library_is_loaded(
    node: Node, without_nvml: dict[str, str]
) -> None:
    code = ENDED_IF_STUCK + START + "alloc(1)\n" + loads(plugin(node, "load"))
    said = node.run(code, **without_nvml)
    assert (said["rc"], said.get("result")) == (0, 0)


def test_an_nvml_that_is_not_there_leaves_what_dlerror_says(
    node: Node, without_nvml: dict[str, str]
) -> None:
    code = START + (
        "module, load = ctypes.c_void_p(), cuda.cuModuleLoadData\n"
        "opened, said = libc.dlopen, libc.dlerror  # looked up now: that empties it, too\n"
        "said.restype = ctypes.c_char_p\nopened(b'libnothere.so', 2)\n"
        "say(result=load(ctypes.byref(module), b'image'), error=(said() or b'').decode())"
    )
    said = node.run(code, **without_nvml)
    assert said["result"] == 0
    assert said["error"].startswith("libnothere.so: ")


LINKED = """
int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, unsigned long long *);
int memory(unsigned long long *into) {
    void *device;
    return nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) || nvmlDeviceGetMemoryInfo(device, into);
}
"""


@pytest.mark.parametrize("way", ["looked up", "linked"])
def test_an_nvml_that_the_program_opens_later_shows_the_limit(
    node: Node, without_nvml: dict[str, str], way: str
) -> None:
    there = str(node.sim.libraries / "libnvidia-ml.so.1")
    linked = library(LINKED, there, f"-Wl,-rpath,{node.sim.libraries}", name="liblinked.so")
    code = START + f"alloc(1)\ninto = (ctypes.c_ulonglong * 3)()\nnvml = ctypes.CDLL({there!r})\n"
    if way == "linked":
        code += f"result = ctypes.CDLL({str(linked)!r}).memory(into)\n"
    else:
        code += (
            "nvml.nvmlInit_v2()\ndevice = ctypes.c_void_p()\n"
            "nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))\n"
            "result = nvml.nvmlDeviceGetMemoryInfo(device, into)\n"
        )
    said = node.run(code + "say(result=result, total=into[0] // MIB)", **without_nvml)
    assert (said["result"], said["total"]) == (0, 1000)
