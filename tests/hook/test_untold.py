"""Drivers that do not tell what the library asks: what is closed then, and what is open (docs/hook.md)."""

import json

import pytest
from hooked_programs import LIMIT, Node

OUT_OF_MEMORY = 2
BEGIN = """
from memory_calls import *
import gpu_calls as g
start(); k = g.kernel("kernel")
"""


@pytest.fixture
def limited(node: Node) -> Node:
    node.sim.kernel("kernel", 1000)
    return node


def test_a_device_whose_uuid_is_not_told_gives_no_memory_and_has_all_of_its_time(
    limited: Node,
) -> None:
    for function in ("cuDeviceGetUuid", "cuDeviceGetUuid_v2"):
        limited.sim.fail(function, 999)
    code = (
        "began = time.monotonic(); r = [alloc(1)[0], draw(1)[0], create(2)[0]]\n"
        "r += {g.launch(k) for _ in range(200)}\n"
        "say(r=r, synchronized=cuda.cuCtxSynchronize(), took_s=time.monotonic() - began)"
    )
    said = limited.run_in_virtual_time(
        BEGIN + code, **{LIMIT: "1000m", "CUDA_DEVICE_SM_LIMIT": "10"}
    )
    *refused, launched = said["r"]
    assert 0 not in refused
    assert (launched, said["synchronized"]) == (0, 0)
    assert said["took_s"] == pytest.approx(0.2, abs=0.01)  # by the simulated driver's clock


def test_of_a_pool_that_is_current_untold_what_is_asked_is_charged(limited: Node) -> None:
    limited.sim.fail("cuDeviceGetMemPool", 999)
    code = "r = [draw(600)[0], draw(600)[0], draw(300)[0], *both()]\nsay(r=r)"
    said = limited.run(BEGIN + code, **{LIMIT: "1000m"})
    *results, charged_mib, held_mib = said["r"]
    assert results == [0, OUT_OF_MEMORY, 0]
    assert charged_mib == 900
    assert held_mib >= 900  # and what the pool keeps beyond that


def test_where_nvml_hangs_launches_and_frees_go_on(limited: Node) -> None:
    """One thread's allocation a second waits for it; it is not to take others along."""
    code = (
        "context = g.Handle(); cuda.cuCtxGetCurrent(ctypes.byref(context)); mine = alloc(8)[1]\n"
        "print('ready', flush=True); input()\n"
        "def allocate():\n"
        "    cuda.cuCtxSetCurrent(context)\n"
        "    while True: free(alloc(1)[1]); time.sleep(0.01)\n"
        "threading.Thread(target=allocate, daemon=True).start(); time.sleep(2.5)\n"
        "r = {g.launch(k) for _ in range(50)} | {cuda.cuCtxSynchronize(), free(mine)}\n"
        "print(json.dumps(sorted(r)), flush=True); os._exit(0)"
    )
    with limited.start(f"import json\n{BEGIN}{code}", env={LIMIT: "1000m"}) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        limited.sim.hang()
        out, err = program.communicate("go\n", timeout=60)
    assert (json.loads(out), err) == ([0], "")
