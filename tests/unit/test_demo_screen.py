"""What the demo prints: words for somebody who sees it for the first time."""

import io

import pytest

from agent.demo.screen import Screen, View
from agent.demo.slices_story import as_told


@pytest.mark.parametrize(
    ("kubelets", "told"),
    [
        pytest.param(
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "nvidia.com/gpu-large. Requested: 1, Available: 0, which is unexpected",
            "requested number of devices unavailable for nvidia.com/gpu-large. Requested: 1, "
            "Available: 0",
            id="kubelet's own",
        ),
        pytest.param(
            "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = "
            f"the container asks for 2, and {'a reason of any length ' * 20}, which is unexpected",
            f"the container asks for 2, and {'a reason of any length ' * 20}",
            id="the agent's, whole",
        ),
        pytest.param("something else", "something else", id="any other"),
    ],
)
def test_a_refusal_is_told_without_kubelets_wrapping(kubelets: str, told: str) -> None:
    assert as_told(kubelets) == told


def test_a_command_is_shown_one_line_below_what_is_above() -> None:
    out = io.StringIO()
    screen = Screen(out=out)
    screen.show(View(), settled=True)
    screen.exhibit("vgpu-agent top", "all is well")
    assert "\n\n\n" not in out.getvalue()
    assert "\n\n$ vgpu-agent top\nall is well\n" in out.getvalue()
