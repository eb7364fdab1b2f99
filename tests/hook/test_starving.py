"""No host memory for what the hook notes: closed for the budget, and nothing is charged for nothing."""

from typing import Any

import pytest
from built_hook import built
from c_programs import library
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

OUT_OF_MEMORY, NVML_MEMORY = 2, 20
BEGIN = """
from memory_calls import *
start()
starve = ctypes.CDLL(STARVE)
def starving(on): ctypes.c_int.in_dll(starve, 'starving').value = on
def denied(): return ctypes.c_int.in_dll(starve, 'refused').value
"""


def starved(node: Node, code: str) -> dict[str, Any]:
    """What a program says that is starved between `starving(1)` and `starving(0)`."""
    starve = library("starve.c", "-ldl", name="libstarve.so")
    said = node.run(
        f"STARVE = {str(starve)!r}{BEGIN}{code}\nsay(answer=answer, both=both(), refused=denied())",
        **{LIMIT: "1000m", "LD_PRELOAD": f"{starve}:{built() / 'libvgpu.so'}"},
    )
    assert said["rc"] == 0, said["stderr"]
    assert said["refused"] > 0, "the case must meet what it is about"
    return said


def test_without_address_space_for_a_note_nothing_is_given(node: Node) -> None:
    """Notes of allocations lie in pages of the kernel's, which nobody can take the place of."""
    code = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (4096, most))
for _ in range(200_000):
    answer = alloc(1 / 2048)[0]
    if answer: break
resource.setrlimit(resource.RLIMIT_AS, (most, most))
say(answer=answer, both=both())
"""
    said = node.run(f"from memory_calls import *\nstart()\n{code}", **{LIMIT: "1000m"})
    charged_mib, held_mib = said["both"]
    assert (said["answer"], charged_mib) == (OUT_OF_MEMORY, held_mib)


def test_without_address_space_to_measure_in_cuda_does_not_start(node: Node) -> None:
    """Or launches would be charged to nobody."""
    code = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_AS)
has = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (has + (7 << 20), most))
refused = cuda.cuInit(0)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
say(answers=[refused, start(), alloc(1)[0]])
"""
    said = node.run(f"from memory_calls import *\n{code}", **{LIMIT: "1000m"})
    assert said["answers"] == [OUT_OF_MEMORY, 0, 0]
    assert "no memory is left to measure what the GPU does" in said["stderr"]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("answer = create(4)[0]", id="cuMemCreate"),
        pytest.param("answer = draw(4)[0]", id="cuMemAllocAsync"),
    ],
)
def test_without_memory_for_a_note_nothing_is_given(node: Node, call: str) -> None:
    said = starved(node, f"starving(1)\n{call}\nstarving(0)")
    charged_mib, held_mib = said["both"]
    assert (said["answer"], charged_mib) == (OUT_OF_MEMORY, held_mib)


@pytest.mark.parametrize(
    ("before", "call", "after"),
    [
        pytest.param("_, h = create(4); at = reserve(4)", "map_at(at, 4, h)", "release(h)", id="map"),
        pytest.param("m = ctypes.c_void_p()", "cuda.cuModuleLoadData(ctypes.byref(m), b'image')", "",
                     id="module"),
        pytest.param("c = ctypes.c_void_p()", "cuda.cuCtxCreate_v2(ctypes.byref(c), 0, 0)", "",
                     id="context"),
        pytest.param("m = multicast(4); _, h = create(4)",
                     "cuda.cuMulticastBindMem(u64(m), 0, u64(h), 0, u64(4 << 20), 0)", "release(h)",
                     id="multicast"),
    ],
)  # fmt: skip
def test_what_cannot_be_noted_stays_charged_while_it_is_held(
    node: Node, before: str, call: str, after: str
) -> None:
    node.sim.change_gpu(0, SimGpu(uuid=made_up_uuid(0), context_mib=3, module_mib=2))
    node.sim.hidden_pids()  # or what is missing would be made good by NVML's figure
    said = starved(node, f"{before}\nstarving(1)\nanswer = repr({call})\nstarving(0)\n{after}")
    charged_mib, held_mib = said["both"]
    assert charged_mib >= held_mib > 3


def test_a_graph_whose_allocation_cannot_be_noted_is_launched(node: Node) -> None:
    """Open: what it takes is charged where NVML's figure of the process is known."""
    made = "starving(1)\ngraph = passing(64)\nstarving(0)\n"
    said = starved(node, f"{made}answer = cuda.cuGraphLaunch(instantiate(graph), None)")
    assert said["answer"] == 0


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("by_process(handle())[0]", id="by process"),
        pytest.param("by_process_newer(handle())[0]", id="newer"),
    ],
)
def test_without_memory_nobody_is_told_of_others(node: Node, call: str) -> None:
    node.sim.process(0, 4242, 9000, sm_percent=40)
    said = starved(node, f"from nvml_calls import *\nstarving(1)\nanswer = {call}\nstarving(0)")
    assert said["answer"] == NVML_MEMORY
