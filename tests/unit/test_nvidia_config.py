"""Sections `sharing` and `resources` of NVIDIA's file: what is read, what is said of what cannot be."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.nvidia_config import (
    MAX_PATTERN_CHARS,
    Replicas,
    Replication,
    ResourcePattern,
    ResourcePatterns,
    parse_patterns,
    parse_replication,
    patterns_as_mapping,
    replication_as_mapping,
)
from agent.errors import ConfigError
from agent.settings import Resolution, resolve

UUID = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"


def entry(**more: object) -> dict[str, object]:
    return {"name": "nvidia.com/gpu", "replicas": 4, **more}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(entry(), Replicas(name="nvidia.com/gpu", replicas=4), id="all devices"),
        pytest.param(entry(devices="all"), Replicas(name="nvidia.com/gpu", replicas=4), id="the word all"),
        pytest.param(entry(name="gpu"), Replicas(name="nvidia.com/gpu", replicas=4), id="a name without its domain"),
        pytest.param(entry(devices=2), Replicas(name="nvidia.com/gpu", replicas=4, devices=2), id="a count"),
        pytest.param(entry(devices=[0, "1", "0:2", UUID]), Replicas(name="nvidia.com/gpu", replicas=4, devices=("0", "1", "0:2", UUID)), id="a list"),
        pytest.param(entry(rename="nvidia.com/slow"), Replicas(name="nvidia.com/gpu", replicas=4, rename="nvidia.com/slow"), id="another name"),
    ],
)  # fmt: skip
def test_a_shared_resource(raw: dict[str, object], expected: Replicas) -> None:
    assert parse_replication({"resources": [raw]}).resources == (expected,)


@pytest.mark.parametrize(
    ("sharing", "name"),
    [
        pytest.param({}, "nvidia.com/gpu", id="the same name"),
        pytest.param({"renameByDefault": True}, "nvidia.com/gpu.shared", id="renameByDefault"),
        pytest.param({"renameByDefault": True, "resources": [entry(rename="x")]}, "nvidia.com/x", id="its own name is stronger"),
    ],
)  # fmt: skip
def test_what_replicas_are_offered_as(sharing: dict[str, object], name: str) -> None:
    replication = parse_replication({"resources": [entry()], **sharing})
    assert replication.offered_as(replication.resources[0]) == name


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param([], "a mapping", id="a list"),
        pytest.param({"resources": {}}, "resources must be a list", id="no list"),
        pytest.param({"resources": [entry(replicas=1)]}, "resources[0].replicas is 1", id="one replica"),
        pytest.param({"resources": [entry(replicas="4")]}, "whole number", id="a text for a number"),
        pytest.param({"resources": [entry(replicas=True)]}, "whole number", id="a switch for a number"),
        pytest.param({"resources": [{"name": "gpu"}]}, "replicas must be", id="no replicas"),
        pytest.param({"resources": [{"replicas": 2}]}, "name of a resource", id="no name"),
        pytest.param({"resources": [entry(name="a.kubernetes.io/b")]}, "name of a resource", id="Kubernetes' own domain"),
        pytest.param({"resources": [entry(devices="some")]}, "`all`, how many", id="another word"),
        pytest.param({"resources": [entry(devices=0)]}, "`all`, how many", id="no device"),
        pytest.param({"resources": [entry(devices=["GPU 0"])]}, "list of indices", id="no reference"),
        pytest.param({"resources": [entry(), entry()]}, "twice", id="twice"),
        pytest.param({"renameByDefault": "yes"}, "true or false", id="a word for a switch"),
        pytest.param({"renamebydefault": True}, "renameByDefault is near", id="upper and lower case"),
        pytest.param({"resources": [entry(replica=3)]}, "'resources[0].replica' (replicas is near)", id="a misspelt key"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(raw: object, words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its words are looked at
        parse_replication(raw)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "product", "matches"),
    [
        pytest.param("*", "NVIDIA A40", True, id="everything"),
        pytest.param("A40", "NVIDIA A40", True, id="a part of the name, as upstream"),
        pytest.param("*A100*40GB", "NVIDIA A100-SXM4-40GB", True, id="stars"),
        pytest.param("A[4]0", "NVIDIA A40", False, id="only * is special"),
        pytest.param("a40", "NVIDIA A40", False, id="case matters"),
    ],
)
def test_patterns(pattern: str, product: str, matches: bool) -> None:
    assert ResourcePattern(pattern, "nvidia.com/x").matches(product) is matches


def test_patterns_are_read() -> None:
    raw = {
        "gpus": [{"pattern": "*A40*", "name": "a40"}],
        "mig": [{"pattern": "1g.*", "name": "small"}],
    }
    assert parse_patterns(raw) == ResourcePatterns(
        gpus=(ResourcePattern("*A40*", "nvidia.com/a40"),),
        mig=(ResourcePattern("1g.*", "nvidia.com/small"),),
    )


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param({"gpus": [{"patern": "x", "name": "y"}]}, "'gpus[0].patern'", id="a misspelt key"),
        pytest.param({"gpu": [{"pattern": "x", "name": "y"}]}, "'gpu' (gpus is near)", id="a misspelt kind"),
        pytest.param({"mig": [{"pattern": "", "name": "y"}]}, "mig[0].pattern must be", id="nothing"),
        pytest.param({"mig": [{"pattern": 7, "name": "y"}]}, "mig[0].pattern must be", id="a number"),
        pytest.param(
            {"mig": [{"pattern": "*" * (MAX_PATTERN_CHARS + 1), "name": "y"}]},
            "mig[0].pattern must be", id="too long",
        ),
        pytest.param({"gpus": {"pattern": "x"}}, "gpus must be a list", id="no list"),
    ],
)  # fmt: skip
def test_patterns_that_cannot_be_are_told(raw: object, words: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - its words are looked at
        parse_patterns(raw)
    assert words in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["resources", "name", "replicas", "devices", "rename", "gpus", "pattern"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(VALUES)
def test_anything_is_read_or_refused_in_words(raw: Any) -> None:
    for parse, shown in (
        (parse_replication, replication_as_mapping),
        (parse_patterns, patterns_as_mapping),
    ):
        try:
            value = parse(raw)
        except ValueError:
            continue
        assert parse(shown(value)) == value


# --- through the settings ------------------------------------------------------------------------


def settle(tmp_path: Path, text: str, *, mode: str = "nvidia", **flags: object) -> Resolution:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    given_flags = {"config-file": str(path), "mode": mode, "node-name": "n"} | flags
    return resolve(given_flags, {}, node_config_file=tmp_path / "none.json")


SHARING = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n"


def test_the_file_is_read_as_it_is(tmp_path: Path) -> None:
    config = settle(tmp_path, SHARING).config
    assert config.time_slicing == Replication(
        resources=(Replicas(name="nvidia.com/gpu", replicas=4),)
    )
    assert config.fail_on_init_error, "as NVIDIA's plugin"


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        pytest.param("flags: {mpsRoot: ''}", "mps_root", Path("/run/nvidia/mps"), id="an empty path is none"),
        pytest.param("flags: {nvidiaDriverRoot: '', nvidiaDevRoot: ''}", "driver_root", Path("/"), id="an empty root is the host's"),
        pytest.param("flags: {migstrategy: mixed}", "mig_strategy", "mixed", id="a key in lower case"),
        pytest.param("Flags: {Plugin: {DEVICEIDSTRATEGY: index}}", "device_id_strategy", "index", id="keys in any case"),
        pytest.param("IMEX: {channelids: [0]}", "imex_channel_ids", frozenset({0}), id="a section in any case"),
        pytest.param("sharing: {timeslicing: {resources: [{name: gpu, replicas: 4}]}}", "time_slicing", Replication(resources=(Replicas(name="nvidia.com/gpu", replicas=4),)), id="a way of sharing in any case"),
        pytest.param("flags: {gfd: {SleepInterval: 60s}}", "mig_strategy", "none", id="feature discovery's in any case"),
    ],
)  # fmt: skip
def test_a_key_means_what_it_means_to_nvidias_plugin(
    tmp_path: Path, text: str, field: str, expected: object
) -> None:
    """Whose parser does not look at the case of a key, and takes an empty text for none."""
    assert getattr(settle(tmp_path, f"version: v1\n{text}").config, field) == expected


def test_two_spellings_of_one_key_are_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"flags\.migstrategy .* twice"):
        settle(tmp_path, "flags: {migStrategy: mixed, migstrategy: single}")


def test_the_null_device_is_an_empty_file() -> None:
    """What NVIDIA's config-manager links the file to where no configuration is chosen."""
    found = resolve({"config-file": os.devnull, "mode": "nvidia", "node-name": "n"}, {})
    assert found.config.mig_strategy == "none"
    assert any("/dev/null is empty" in note.text for note in found.notes)


def test_json_is_a_form_of_the_file(tmp_path: Path) -> None:
    text = '{"version": "v1", "flags": {"plugin": {"deviceListStrategy": ["envvar", "cdi-cri"]}}}'
    assert settle(tmp_path, text).config.device_list_strategy == ("envvar", "cdi-cri")


def test_mps_fails_requests_greater_than_one_unless_told(tmp_path: Path) -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 4}]%s}}"
    assert settle(tmp_path, text % "").config.mps.fail_above_one
    relaxed = text % ", failRequestsGreaterThanOne: false"
    assert not settle(tmp_path, relaxed).config.mps.fail_above_one


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("flags: {migStrateggy: none}", "'flags.migStrateggy' (migStrategy is near)", id="a flag"),
        pytest.param("flags: {plugin: {deviceStrategy: uuid}}", "(deviceIDStrategy is near)", id="a flag of the plugin"),
        pytest.param("sharing: {timeSlice: {}}", "'sharing.timeSlice' (timeSlicing is near)", id="a way of sharing"),
        pytest.param("imex: {channels: [0]}", "(channelIDs is near)", id="IMEX"),
        pytest.param("sharing: {timeSlicing: {resource: []}}", "(resources is near)", id="within sharing"),
        pytest.param(SHARING.replace("timeSlicing", "mps") + "", "", id="one way is fine"),
        pytest.param("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}, mps: {resources: [{name: gpu, replicas: 2}]}}", "in one way", id="both ways"),
    ],
)  # fmt: skip
def test_keys_that_nobody_knows_are_refused(tmp_path: Path, text: str, words: str) -> None:
    if not words:
        settle(tmp_path, text)
        return
    with pytest.raises(ConfigError) as refused:
        settle(tmp_path, text)
    assert words in str(refused.value)


def test_what_feature_discovery_reads_is_none_of_ours(tmp_path: Path) -> None:
    settle(tmp_path, "flags: {gfd: {oneshot: true, sleepInterval: 60s}}")


def test_other_modes_only_warn_of_unknown_keys(tmp_path: Path) -> None:
    notes = settle(tmp_path, "version: v1\nflags: {migStrateggy: none}", mode="hami").notes
    assert any("migStrateggy" in note.text and note.warning for note in notes)


def test_other_modes_refuse_replicas(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set --mode nvidia"):
        settle(tmp_path, SHARING, mode="hami")
