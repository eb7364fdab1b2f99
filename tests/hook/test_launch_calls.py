"""The calls that few programs launch by are limited as the usual one is: those of CUDA 2, and that on several GPUs."""

import pytest
from hooked_programs import Node

from agent.sim.driver import made_up_uuid

CALL = "cuLaunchCooperativeKernelMultiDevice"
GPUS, UUIDS = 3, [made_up_uuid(number) for number in range(3)]
BEGIN = f"""
from gpu_calls import *

UUIDS = {UUIDS}


class Entry(ctypes.Structure):
    _fields_ = [("function", Handle), ("shape", ctypes.c_uint * 7), ("stream", Handle),
                ("parameters", Handle)]


def on_each(streams):
    shape = (ctypes.c_uint * 7)(1, 1, 1, 32, 1, 1, 0)
    entries = [Entry(function, shape, where) for where in streams]
    return cuda.{CALL}((Entry * len(entries))(*entries), len(entries), 0)


def streams():
    there = []
    for device in range(len(UUIDS)):
        assert start(device) == 0
        there.append(stream())
    return there


assert start() == 0
library = made("cuLibraryLoadData", b"image", None, None, 0, None, None, 0)
function = made("cuLibraryGetKernel", library, b"kernel")
"""


@pytest.fixture
def limited(node: Node) -> Node:
    """Three GPUs whose kernels take 3 ms."""
    for _ in UUIDS[1:]:
        node.sim.add_gpu()
    node.sim.kernel("kernel", 3000)
    return node


@pytest.mark.parametrize("us", [50, 3000], ids=["paid for ahead", "measured each"])
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("cuLaunch", "function"),
        ("cuLaunchGrid", "function, 1, 1"),
        ("cuLaunchGridAsync", "function, 1, 1, here"),
    ],
)
def test_who_launches_as_in_cuda_2_has_its_share(
    limited: Node, call: str, arguments: str, us: int
) -> None:
    limited.sim.kernel("kernel", us)
    code = f"""
function, here = kernel("kernel"), stream()
until_us = now_us() + 2_000_000
while now_us() < until_us:
    assert cuda.{call}({arguments}) == 0
say(percent=gpu_us(UUIDS[0]) / 20_000)
"""
    said = limited.run_in_virtual_time(BEGIN + code, CUDA_DEVICE_SM_LIMIT="30")
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["percent"] == pytest.approx(30, abs=2)


def test_each_of_three_gpus_of_a_launch_is_charged(limited: Node) -> None:
    code = """
there = streams()
for _ in range(30):
    assert on_each(there) == 0
    assert not any(cuda.cuStreamSynchronize(where) for where in there)
worked = [gpu_us(uuid) for uuid in UUIDS]
say(worked=worked, charged=[settled_us(us * 9 // 10, gpu) for gpu, us in enumerate(worked)])
"""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS), "CUDA_DEVICE_SM_LIMIT": "60"}
    said = limited.run_in_virtual_time(BEGIN + code, **env)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["worked"] == [90_000] * GPUS
    assert said["charged"] == [pytest.approx(90_000, rel=0.05)] * GPUS


@pytest.mark.parametrize(
    ("where", "each"),
    [
        pytest.param("there", 1, id="in order"),
        pytest.param("[there[0]] * 2", 1, id="a device twice"),
        pytest.param("[there[0]] * 64", 1, id="64 entries"),
        pytest.param("[there[0]] * 65", 0, id="65 entries"),
    ],
)
def test_a_launch_on_several_that_the_driver_refuses_waits_for_none_of_its_entries(
    limited: Node, where: str, each: int
) -> None:
    """`each`: how often one is counted on the first device. The second entry never waits for the first."""
    limited.sim.fail(CALL, 1)
    code = f"""
there, began_us = streams(), now_us()
results = {{on_each({where}) for _ in range(300)}}
region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
counted = struct.unpack_from("<Q", region, CHARGED_AT + 16)[0]
say(results=list(results), counted=counted, took_us=now_us() - began_us)
"""
    env = {"NVIDIA_VISIBLE_DEVICES": ",".join(UUIDS), "CUDA_DEVICE_SM_LIMIT": "60"}
    said = limited.run_in_virtual_time(BEGIN + code, **env)
    assert (said["rc"], said["stderr"], said["results"]) == (0, "", [1])
    assert said["took_us"] < 1_000_000  # of virtual time
    assert said["counted"] == pytest.approx(300 * each, abs=70 if each else 0)  # told 71 at a time
