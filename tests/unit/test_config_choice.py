"""Which of several configurations a node takes: as NVIDIA's config-manager decides."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from agent.adapters.config_folder import configurations
from agent.domain.config_choice import ConfigChoice
from agent.domain.pods import Node
from agent.errors import ConfigError
from agent.services.config_choice import ConfigWatch
from agent.services.published import Published
from agent.settings import resolve

LABEL = "nvidia.com/device-plugin.config"
PLAIN = ConfigChoice(label=LABEL, default="", fallbacks=("named", "single"))
TWO, ONE = ("default", "mig"), ("only",)


@pytest.mark.parametrize(
    ("choice", "value", "there", "name"),
    [
        pytest.param(PLAIN, "mig", TWO, "mig", id="the label"),
        pytest.param(replace(PLAIN, default="mig"), "default", TWO, "default", id="the label is stronger"),
        pytest.param(replace(PLAIN, default="mig"), "", TWO, "mig", id="the default"),
        pytest.param(PLAIN, "", TWO, "default", id="named: the one called default"),
        pytest.param(PLAIN, "", ONE, "only", id="single: the only one"),
        pytest.param(replace(PLAIN, fallbacks=("single", "empty")), "", TWO, "", id="empty: none"),
        pytest.param(replace(PLAIN, fallbacks=("empty", "named")), "", TWO, "", id="in their order"),
    ],
)  # fmt: skip
def test_the_choice(choice: ConfigChoice, value: str, there: Collection[str], name: str) -> None:
    assert choice.name(value, there) == name


@pytest.mark.parametrize(
    ("choice", "value", "there", "words"),
    [
        pytest.param(PLAIN, "gone", TWO, "label nvidia.com/device-plugin.config names", id="a label of none"),
        pytest.param(PLAIN, "../x", TWO, "default, mig", id="no path"),
        pytest.param(replace(PLAIN, default="x"), "", TWO, "--default-config names", id="a default of none"),
        pytest.param(PLAIN, "", ("a", "b"), "label the Node", id="no fallback chooses"),
        pytest.param(PLAIN, "", (), "none", id="no configuration"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_is_told(
    choice: ConfigChoice, value: str, there: Collection[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        choice.name(value, there)


def test_configurations_are_the_files_of_a_configmap(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    for name in ("a", "b"):
        (tmp_path / "..2026" / name).write_text("")
        (tmp_path / name).symlink_to(f"..data/{name}")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "folder").mkdir()
    assert configurations(tmp_path) == {"a", "b"}
    with pytest.raises(ConfigError, match="mount the ConfigMap"):
        configurations(tmp_path / "none")


@pytest.mark.parametrize(
    ("labels", "ends"),
    [
        pytest.param({LABEL: "mig"}, True, id="another one"),
        pytest.param({LABEL: "default"}, False, id="the same"),
        pytest.param({}, False, id="the same, by the fallback"),
        pytest.param({LABEL: "gone"}, False, id="one that is not there"),
        pytest.param(None, False, id="a Node that is gone"),
    ],
)
def test_the_agent_ends_when_another_one_is_chosen(
    labels: dict[str, str] | None, ends: bool
) -> None:
    ended: list[bool] = []
    node = None if labels is None else Node(name="n", labels=labels)
    watch = ConfigWatch(
        Published(node),
        lambda value: PLAIN.name(value, TWO),
        label=LABEL,
        chosen="default",
        anew=lambda: ended.append(True),
    )
    assert watch.look_once() is ends
    assert bool(ended) is ends


def test_only_mode_nvidia_has_it() -> None:
    with pytest.raises(ConfigError, match="node override"):
        resolve({"node-name": "n", "config-file-srcdir": "/x"}, {})
    environ = {"CONFIG_FILE_SRCDIR": "/x", "NODE_LABEL": "a/b", "DEFAULT_CONFIG": "c",
               "FALLBACK_STRATEGIES": "empty", "VGPU_MODE": "nvidia"}  # fmt: skip
    config = resolve({"node-name": "n"}, environ).config
    assert config.config_srcdir == Path("/x")
    assert config.config_choice == ConfigChoice(label="a/b", default="c", fallbacks=("empty",))
    with pytest.raises(ConfigError, match="named, single, empty"):
        resolve({"node-name": "n"}, {**environ, "FALLBACK_STRATEGIES": "nammed"})
