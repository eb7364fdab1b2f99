"""Captures of streams are the program's: what we do meanwhile neither disturbs them nor charges what they take in."""

import pytest
from hooked_programs import Node

from agent.sim.driver import made_up_uuid

BEGIN = """
from gpu_calls import *

assert start() == 0
context = Handle()
cuda.cuCtxGetCurrent(ctypes.byref(context))
long, short = kernel("long"), kernel("short")


def mode():
    was = ctypes.c_int(GLOBAL)
    assert cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(was)) == 0
    return was.value

"""
LIMITED = {"CUDA_DEVICE_SM_LIMIT": "99"}


@pytest.fixture
def busy(node: Node) -> Node:
    """Kernels of 30 ms, every one of which is measured, and of 50 us."""
    node.sim.kernel("long", 30_000)
    node.sim.kernel("short", 50)
    return node


def test_reading_measurements_disturbs_no_capture(busy: Node) -> None:
    """Captures begin while something is measured: our thread asks for its events all the time."""
    code = """
there, here = stream(), stream()
ends = []
for _ in range(3):
    assert launch(long, there) == 0
    assert begin(here) == 0
    for _ in range(20):
        assert launch(short, here) == 0
        time.sleep(0.001)
    ends.append(end(here)[0])
say(ends=ends, mode=mode())
"""
    said = busy.run_in_virtual_time(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"], said["ends"]) == (0, "", [0, 0, 0])


def test_measuring_beside_a_capture_of_ones_own_does_not_disturb_it(busy: Node) -> None:
    """The launching thread makes events and waits for what they tell, and keeps its mode."""
    code = """
here, there = stream(), stream()
assert begin(here) == 0
results = [launch(long, there) for _ in range(4)]
say(results=results, end=end(here)[0], mode=mode())
"""
    said = busy.run_in_virtual_time(BEGIN + code, **LIMITED)
    assert (said["results"], said["end"], said["mode"]) == ([0] * 4, 0, 0)


BEGINS = [
    ("cuStreamBeginCapture", "here"),
    ("cuStreamBeginCapture_v2", "here, RELAXED"),
    ("cuStreamBeginCaptureToGraph", "here, graph, None, None, ctypes.c_size_t(0), RELAXED"),
    ("cuStreamBeginRecaptureToGraph", "here, RELAXED, graph, None, None"),
]


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize(("call", "arguments"), BEGINS, ids=[call for call, _ in BEGINS])
def test_what_is_captured_takes_nothing_of_what_was_charged_ahead(
    busy: Node, call: str, arguments: str, suffix: str
) -> None:
    """A launch takes up to 1 ms for those that follow: not for those into a capture."""
    code = f"""
here, graph = stream(), made("cuGraphCreate", 0)
for _ in range(50):
    assert launch(short, here) == 0
assert cuda.cuStreamBeginCaptureToGraph(here, graph, None, None, ctypes.c_size_t(0), RELAXED) == 0
for _ in range(30):
    assert launch(short, here) == 0
assert end(here)[0] == 0
before, ends = charged_us(), set()
for _ in range(50):
    assert launch(short, here) == 0
    assert cuda.{call}{suffix}({arguments}) == 0
    for _ in range(30):
        assert launch(short, here) == 0
    ends.add(end(here)[0])
cuda.cuCtxSynchronize()
time.sleep(0.05)
say(ends=list(ends), charged=charged_us() - before)
"""
    said = busy.run_in_virtual_time(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"], said["ends"]) == (0, "", [0])
    assert said["charged"] < 4_000  # 2.5 ms ran


WAYS = [
    ("cuLaunchKernel", "long, 1, 1, 1, 32, 1, 1, 0, None, None, None"),
    ("cuLaunchKernelEx", "ctypes.byref(config), long, None, None"),
    ("cuLaunchCooperativeKernel", "long, 1, 1, 1, 32, 1, 1, 0, None, None"),
    ("cuGraphLaunch", "graph, None"),
]


@pytest.mark.parametrize(("call", "arguments"), WAYS, ids=[call for call, _ in WAYS])
def test_events_go_where_the_launch_goes(node: Node, call: str, arguments: str) -> None:
    """Were they on the legacy stream, the thread's own stream would wait for all others."""
    node.sim.kernel("long", 3_000_000)
    node.sim.kernel("short", 1000)
    code = f"""
long, endless = short, long
class Config(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_uint * 7), ("stream", Handle), ("more", ctypes.c_char * 24)]
config = Config((ctypes.c_uint * 7)(1, 1, 1, 32, 1, 1, 0))
here, other = stream(), stream(0)
begin(here); launch(short, here); graph = executable(end(here)[1])
for _ in range(3):
    assert cuda.{call}_ptsz({arguments}) == 0
    cuda.cuCtxSynchronize(); time.sleep(0.01)
assert launch(endless, other) == 0
time.sleep(0.005)
assert cuda.{call}_ptsz({arguments}) == 0
assert cuda.cuStreamSynchronize_ptsz(None) == 0
say(others=cuda.cuStreamQuery(other))
"""
    said = node.run_in_virtual_time(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["others"] == 600  # still busy


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize(
    "then",
    [
        pytest.param("", id="open"),
        pytest.param("assert cuda.cuStreamDestroy_v2(there) == 0", id="never seen to end"),
    ],
)
def test_launches_beside_a_capture_are_counted(node: Node, then: str, suffix: str) -> None:
    """Those into it are not."""
    code = f"""
here, there = stream(), stream()


def launched():
    for _ in range(200):
        assert launch(short, here, "cuLaunchKernel{suffix}") == 0
    region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
    return struct.unpack_from("<Q", region, CHARGED_AT + 16)[0]


before = launched()
assert cuda.cuStreamBeginCapture_v2{suffix}(there, RELAXED) == 0
for _ in range(200):
    assert launch(short, there, "cuLaunchKernel{suffix}") == 0
{then}
say(counted=launched() - before)
"""
    said = node.run(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["counted"] == pytest.approx(200, abs=70)  # they are told 71 at a time


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize(
    ("spoil", "result"),
    [
        pytest.param("", 0, id="in order"),
        pytest.param("cuda.cuStreamSynchronize(here)", 901, id="invalidated"),
        pytest.param("fork()", 904, id="unjoined"),
    ],
)
def test_a_capture_that_has_ended_however_is_over(
    node: Node, spoil: str, result: int, suffix: str
) -> None:
    """Launches afterwards are none of a capture's: they pass as before, and are counted."""
    code = f"""
here, there = stream(), stream()


def fork():
    assert cuda.cuStreamWaitEvent(there, record(here), 0) == 0
    assert launch(short, there) == 0


def launched():
    for _ in range(200):
        assert launch(short, here) == 0
    region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
    return struct.unpack_from("<Q", region, CHARGED_AT + 16)[0]


before = launched()
assert begin(here) == 0 == launch(short, here)
{spoil}
graph = Handle()
ended = cuda.cuStreamEndCapture{suffix}(here, ctypes.byref(graph))
say(ended=ended, counted=launched() - before)
"""
    said = node.run(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"], said["ended"]) == (0, "", result)
    assert said["counted"] == pytest.approx(200, abs=70)  # they are told 71 at a time


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
@pytest.mark.parametrize(
    ("begin", "spoil", "result"),
    [
        pytest.param("begin(here)", "", 0, id="in order"),
        pytest.param("begin(here)", "cuda.cuStreamSynchronize(here)", 901, id="invalidated"),
        pytest.param(
            "again()", "launch(short, here), launch(short, here)", 901, id="recaptured otherwise"
        ),
        pytest.param("again()", "", 918, id="not recaptured whole"),
    ],
)
def test_no_launch_asks_for_captures_when_the_last_has_ended(
    node: Node, begin: str, spoil: str, result: int, suffix: str
) -> None:
    """One that asked would be answered that it is captured, and not counted."""
    code = f"""
from memory_calls import refused

here, there = stream(), stream()
assert begin(there) == 0 == launch(short, there) == launch(short, there)
ended, two = end(there)


def again():
    return cuda.cuStreamBeginRecaptureToGraph{suffix}(here, RELAXED, two, None, None)


def launched():
    for _ in range(200):
        assert launch(short, there) == 0
    region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
    return struct.unpack_from("<Q", region, CHARGED_AT + 16)[0]


before = launched()
assert ended == 0 == {begin} == launch(short, here)
{spoil}
ended = cuda.cuStreamEndCapture{suffix}(here, ctypes.byref(Handle()))
with refused("cuStreamIsCapturing", 906):
    say(ended=ended, counted=launched() - before)
"""
    said = node.run(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"], said["ended"]) == (0, "", result)
    assert said["counted"] == pytest.approx(200, abs=70)  # they are told 64 at a time


@pytest.mark.parametrize("suffix", ["", "_ptsz"])
def test_a_stream_that_only_joined_an_invalidated_capture_does_not_end_it(
    node: Node, suffix: str
) -> None:
    """The driver says of both streams that it is invalidated: there is one capture less, not two."""
    code = f"""
here, joined, there = stream(), stream(), stream()


def launched():
    for _ in range(200):
        assert launch(short, there) == 0
    region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
    return struct.unpack_from("<Q", region, CHARGED_AT + 16)[0]


before = launched()
assert begin(there, RELAXED) == 0 == begin(here, RELAXED)
assert cuda.cuStreamWaitEvent(joined, record(here), 0) == 0 == launch(short, joined)
assert cuda.cuStreamSynchronize(here) == 900
graph = Handle()
ended = [cuda.cuStreamEndCapture{suffix}(of, ctypes.byref(graph)) for of in (joined, here)]
into = launched()
say(ended=ended, into=into - before, end=end(there)[0], counted=launched() - into)
"""
    said = node.run(BEGIN + code, **LIMITED)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert (said["ended"], said["end"]) == ([901, 901], 0)
    assert said["into"] <= 70  # they are told 71 at a time
    assert said["counted"] == pytest.approx(200, abs=70)


PAST_US = f"""
from memory_calls import unseen
begun_past_us = unseen("cuStreamBeginCapture_v2", Handle, ctypes.c_int)


def runs_us(graph):
    before = gpu_us("{made_up_uuid(0)}")
    assert cuda.cuGraphLaunch(executable(graph), None) == 0 == cuda.cuCtxSynchronize()
    return gpu_us("{made_up_uuid(0)}") - before

"""
BEGUN = [
    pytest.param("begin(here)", id="begun by us"),
    pytest.param("begun_past_us(here, GLOBAL)", id="begun past us"),
]


@pytest.mark.parametrize("begun", BEGUN)
def test_launches_into_a_capture_are_whole_and_not_charged(busy: Node, begun: str) -> None:
    """Whoever began it: what is measured there would be an event of the capture, which nobody may ask for."""
    code = f"""
here = stream()
assert launch(long, here) == 0 == cuda.cuStreamSynchronize(here)
time.sleep(0.05)
before, begun = charged_us(), {begun}
results = []
for _ in range(5):
    results.append(launch(long, here))
    time.sleep(0.05)
(ended, graph), charged = end(here), charged_us() - before
say(begun=begun, results=results, ended=ended, charged=charged, us=0 if ended else runs_us(graph))
"""
    said = busy.run_in_virtual_time(BEGIN + PAST_US + code, **LIMITED)
    assert (said["rc"], said["stderr"], said["begun"]) == (0, "", 0)
    assert (said["results"], said["ended"], said["us"]) == ([0] * 5, 0, 150_000)
    assert said["charged"] == 0


@pytest.mark.parametrize("begun", BEGUN)
def test_what_the_driver_refuses_beside_a_capture_does_not_disturb_it(
    busy: Node, begun: str
) -> None:
    """Of the legacy stream a launch without threads: an event of ours there would end the capture."""
    code = f"""
here = stream(0)
begun = {begun}
launched = launch(long, here)
refused = cuda.cuLaunchKernel(long, 1, 1, 1, 0, 1, 1, 0, None, None, None)
ended, graph = end(here)
say(begun=begun, launched=launched, refused=refused, ended=ended, us=0 if ended else runs_us(graph))
"""
    said = busy.run_in_virtual_time(BEGIN + PAST_US + code, **LIMITED)
    assert (said["rc"], said["stderr"], said["begun"]) == (0, "", 0)
    assert (said["launched"], said["refused"]) == (0, 1)
    assert (said["ended"], said["us"]) == (0, 30_000)
