"""What the environment file tells of an agent that could not start."""

from pathlib import Path

import pytest

from agent.hostinstall.layout import Layout
from agent.hostinstall.look import look

NAMES = "has to name a kubeconfig"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        pytest.param("VGPU_KUBECONFIG={there}\n", "", id="it is there"),
        pytest.param("KUBECONFIG='{there}'\n", "", id="by its usual name"),
        pytest.param("VGPU_KUBECONFIG=/no/where\n", "put a kubeconfig", id="it is not there"),
        pytest.param("", NAMES, id="none is named"),
        pytest.param("VGPU_MODE=hami\n", NAMES, id="the mode needs one"),
        pytest.param("VGPU_MODE=bogus\n", NAMES, id="no such mode"),
        pytest.param("VGPU_MODE=slices\n", "", id="the mode needs none"),
        pytest.param(
            "VGPU_MODE=slices\nVGPU_KUBECONFIG=/no/where\n", "or take VGPU_KUBECONFIG out of",
            id="the mode needs none, and one is named",
        ),
    ],
)  # fmt: skip
def test_a_kubeconfig_that_is_missing_is_told(tmp_path: Path, settings: str, missing: str) -> None:
    (there := tmp_path / "kubeconfig").touch()
    root = tmp_path / "root"
    (root / "etc/vgpu-agent").mkdir(parents=True)
    (root / "etc/vgpu-agent/vgpu-agent.env").write_text(settings.format(there=there))

    told = look(Layout(), root, None).missing

    assert missing in told
    assert bool(told) is bool(missing)


def test_without_settings_it_is_where_the_form_says(tmp_path: Path) -> None:
    assert "/etc/vgpu-agent/kubeconfig" in look(Layout(), tmp_path, None).missing
