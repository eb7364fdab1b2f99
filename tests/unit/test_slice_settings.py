"""Settings of mode `slices`: from flags and files, and what is refused with a sentence."""

from pathlib import Path

import pytest

from agent.config import Config
from agent.domain.slices import SliceSize
from agent.errors import ConfigError
from agent.settings import resolve

SMALL = SliceSize(name="small", memory_mib=8192, core_percent=25)
LARGE = SliceSize(name="large", memory_mib=24576, core_percent=50)


def settled(**flags: object) -> Config:
    words = {name.replace("_", "-"): value for name, value in flags.items()}
    return resolve({"node-name": "n", **words}, {}, hostname=lambda: "n").config


def test_sizes_from_a_flag() -> None:
    config = settled(mode="slices", slice_sizes="small=8Gi:25,large=24Gi:50")
    assert config.slice_sizes == (SMALL, LARGE)
    assert (config.slice_placement, config.slice_gpus) == ("spread", "one")
    assert not config.follows_cluster


def test_sizes_from_a_file_which_a_flag_overrules(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "sizes:\n  small: {memory: 8Gi, cores: 25}\n  large: {memory: 24Gi, cores: 50}\n"
    )
    assert settled(mode="slices", config_file=str(file)).slice_sizes == (SMALL, LARGE)
    config = settled(mode="slices", config_file=str(file), slice_sizes="small=8Gi:25")
    assert config.slice_sizes == (SMALL,)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param({"slice_sizes": "small"}, "--slice-sizes is 'small', but", id="no size"),
        pytest.param({"slice_gpus": "two"}, "--slice-gpus is 'two'", id="no such choice"),
        pytest.param({"slice_placement": "x"}, "--slice-placement is 'x'", id="no such placement"),
        pytest.param({"unannotated": "x"}, "--unannotated is 'x'", id="no such answer"),
        pytest.param(
            {"mode": "slices", "device_split_count": "101"},
            "set --device-split-count to 100 or less",
            id="less than 1 %",
        ),
        pytest.param(
            {"unannotated": "slice", "device_split_count": "101"},
            "set --device-split-count to 100 or less",
            id="the same beside HAMi",
        ),
        pytest.param(
            {"mode": "slices", "slice_sizes": "large=24Gi:50", "device_cores_scaling": "0.4"},
            "the size large has 50 %",
            id="more than is handed out",
        ),
        pytest.param(
            {
                "mode": "slices",
                "slice_sizes": "a-long-name=8Gi:25",
                "resource_name": f"example.com/{'x' * 62}",
            },
            "kubelet takes only names like",
            id="a resource's name that is too long",
        ),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settled(**flags)
    assert said in str(refused.value)


def test_other_modes_do_not_mind_what_is_not_theirs() -> None:
    assert settled(device_split_count="101").mode == "hami"
