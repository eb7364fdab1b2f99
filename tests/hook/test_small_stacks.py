"""Threads with the smallest stack that Linux has for them, where the driver itself gets by with that.

The simulated driver does. For aarch64 see test_aarch64.py.
"""

import pytest
from built_hook import ROOT, built
from c_programs import compiled
from hooked_programs import LIMIT, Node
from small_stacks import RESULTS, SMALLEST_BYTES, STEPS, results


@pytest.mark.parametrize("hooked", [True, False])
def test_all_of_it_works_in_the_smallest_threads(node: Node, hooked: bool) -> None:
    node.sim.kernel("kernel", 20, 400)
    program = compiled("small_stack.c", f"-I{ROOT / 'hook'}", "-ldl", "-lpthread")
    preload = str(built() / "libvgpu.so") if hooked else ""
    limits = {LIMIT: "1g", "CUDA_DEVICE_SM_LIMIT": "50"}
    words = [str(program), str(SMALLEST_BYTES), *STEPS]
    done = node.run_program(words, LD_PRELOAD=preload, **limits)
    assert done.returncode == 0, (done.stdout, done.stderr)
    expected = RESULTS if hooked else [(name, 0) for name in STEPS]
    assert results(done.stdout.splitlines()) == expected
