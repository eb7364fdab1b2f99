"""When a kernel ran last stands in the usage region, for monitors: it is noted once in so many seconds."""

import pytest
from hooked_programs import Node

NOTES = """
from gpu_calls import *

assert start() == 0
function, interval_s = kernel("kernel"), {seconds}


def note(after_s):
    time.sleep(after_s)
    assert launch(function) == 0
    region = Path(os.environ["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).read_bytes()
    return struct.unpack_from("<Q", region, 2008912)[0] - int(began_s)


began_s = time.time() + 1.5 - time.time() % 1
say(notes=[note(began_s - time.time())]
    + [note(after_s) for _ in range(2) for after_s in (interval_s - 0.3, 0.4)])
"""


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        pytest.param({}, 1, id="unset"),
        pytest.param({"RECORD_KERNEL_INTERVAL": "1"}, 1, id="1"),
        pytest.param({"RECORD_KERNEL_INTERVAL": "2"}, 2, id="2"),
        pytest.param({"RECORD_KERNEL_INTERVAL": "5"}, 5, id="5"),
        pytest.param({"RECORD_KERNEL_INTERVAL": "0"}, 1, id="0"),
        pytest.param({"RECORD_KERNEL_INTERVAL": "x"}, 1, id="no number"),
        pytest.param({"RECORD_KERNEL_INTERVAL": "-1"}, 1, id="negative"),
    ],
)
def test_notes_lie_as_far_apart_as_is_said(node: Node, env: dict[str, str], seconds: int) -> None:
    """A launch 0.3 s early, when a second has begun, is not noted; one 0.1 s late is."""
    node.sim.kernel("kernel", 3000)  # each is looked at closely
    code = NOTES.format(seconds=seconds)
    said = node.run_in_virtual_time(code, CUDA_DEVICE_SM_LIMIT="60", **env)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert said["notes"] == [0, 0, seconds, seconds, 2 * seconds]
