"""The register annotation in its three forms, and the pair scores."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.gpu import Gpu, Sharing
from agent.domain.register import (
    INT32_MAX,
    RegisteredGpu,
    decode_register,
    encode_register,
    encode_scores,
    registered_gpus,
    says_the_same,
    type_name,
)
from agent.errors import MalformedAnnotation
from agent.sim.scheduler_wire import PROFILES, UnreadableNode
from agent.sim.scheduler_wire import decode_register as scheduler_reads

A40 = RegisteredGpu(
    uuid="GPU-03f69c50-207a-2038-9b45-23cac89cb67d",
    count=10,
    memory_mib=46068,
    core_percent=100,
    type="NVIDIA-NVIDIA A40",
    healthy=True,
)
RTX = RegisteredGpu(
    uuid="GPU-a8243209-6b70-5b3d-de52-1aaafc1495fc",
    count=10,
    memory_mib=24576,
    core_percent=100,
    type="NVIDIA-NVIDIA GeForce RTX 3090",
    healthy=True,
)


def gpu(uuid: str = "GPU-a", index: int = 0, **more: Any) -> Gpu:
    return Gpu(**({"uuid": uuid, "index": index, "name": "NVIDIA A40", "memory_mib": 46068} | more))


@pytest.mark.parametrize(
    ("form", "gpus", "text"),
    [
        pytest.param(
            "csv7",
            [A40],
            "GPU-03f69c50-207a-2038-9b45-23cac89cb67d,10,46068,100,NVIDIA-NVIDIA A40,0,true:",
            id="7 fields",
        ),
        pytest.param(
            "csv9",
            [RTX],
            "GPU-a8243209-6b70-5b3d-de52-1aaafc1495fc,10,24576,100,"
            "NVIDIA-NVIDIA GeForce RTX 3090,0,true,0,hami-core:",
            id="9 fields",
        ),
        pytest.param(
            "csv9",
            [RegisteredGpu(uuid="GPU-a", index=3, numa=1, mode=""), RegisteredGpu(uuid="GPU-b")],
            "GPU-a,0,0,0,,1,false,3,:GPU-b,0,0,0,,0,false,0,hami-core:",
            id="two GPUs, empty mode",
        ),
        pytest.param("csv7", [], "", id="CSV without GPUs"),
        pytest.param("json", [], "[]", id="JSON without GPUs"),
        pytest.param(
            "json",
            [
                RegisteredGpu(
                    uuid="GPU-a", count=10, memory_mib=46068, core_percent=100,
                    type="NVIDIA A40", healthy=True,
                )
            ],
            '[{"id":"GPU-a","count":10,"devmem":46068,"devcore":100,"type":"NVIDIA A40",'
            '"mode":"hami-core","health":true}]',
            id="JSON leaves zeros out",
        ),
        pytest.param(
            "json",
            [
                RegisteredGpu(
                    uuid="GPU-x", index=1, count=10, memory_mib=81559, core_percent=100,
                    type="NVIDIA H100 80GB HBM3", numa=1, mode="mig",
                )
            ],
            '[{"id":"GPU-x","index":1,"count":10,"devmem":81559,"devcore":100,'
            '"type":"NVIDIA H100 80GB HBM3","numa":1,"mode":"mig"}]',
            id="unhealthy is the absence of health",
        ),
        pytest.param(
            "json",
            [RegisteredGpu(uuid="GPU-a", type="a<b>&c", mode="")],
            '[{"id":"GPU-a","type":"a\\u003cb\\u003e\\u0026c"}]',
            id="escapes as Go does",
        ),
    ],
)  # fmt: skip
def test_written_as_the_plugin_writes_it(form: str, gpus: list[RegisteredGpu], text: str) -> None:
    assert encode_register(gpus, form) == text


@pytest.mark.parametrize(
    ("form", "text", "result"),
    [
        pytest.param("csv9", "GPU-a,10,46068,100,NVIDIA-NVIDIA A40,0,true:",
                     [("GPU-a", 0, "hami-core", True)], id="7 fields where 9 are usual"),
        pytest.param("csv9", "GPU-a,10,24576,100,NVIDIA-X,0,true,0,:",
                     [("GPU-a", 0, "", True)], id="empty mode"),
        pytest.param("csv9", "GPU-a,1,2,3,X,0,1,3,mig:GPU-b,1,2,3,X,1,F,1,hami-core:",
                     [("GPU-a", 3, "mig", True), ("GPU-b", 1, "hami-core", False)],
                     id="Go's spellings of health"),
        pytest.param("csv9", ":", [], id="a lonely separator"),
        pytest.param("csv9", "GPU-a,10,24576,100,NVIDIA-X,0,true,0:", None, id="8 fields"),
        pytest.param("csv7", "GPU-a,10,24576,100,NVIDIA-X,0,true,0,:", None, id="9 where 7 are due"),
        pytest.param("csv7", "GPU-a,10,24576,100,NVIDIA-X,0,true", None, id="no separator"),
        pytest.param("csv7", "junk:GPU-a,10,24576,100,NVIDIA-X,0,true:", None, id="junk"),
        pytest.param("csv7", "GPU-a,x,24576,100,NVIDIA-X,0,true:", None, id="count is no number"),
        pytest.param("csv7", "GPU-a,1,2,3,X,0,maybe:", None, id="health is neither"),
        pytest.param("csv7", "GPU-a,99999999999,2,3,X,0,true:", None, id="over int32"),
        pytest.param("csv9", "GPU-a,1,2,3,X,0,true,-1,:", None, id="negative index"),
        pytest.param("csv7", "GPU-a,1,2,3,X,0," + "x" * 5000 + ":", None, id="long health"),
        pytest.param("csv7", "GPU-a," + "1" * 5000 + ",2,3,X,0,true:", None, id="long number"),
        pytest.param("csv7", "", None, id="empty CSV"),
        pytest.param("json", "[]", [], id="empty list"),
        pytest.param("json", "null", [], id="null"),
        pytest.param("json", '[{"ID":"GPU-a","new":1,"numa":null}]', [("GPU-a", 0, "", False)],
                     id="unknown keys, case, null"),
        pytest.param("json", "[null]", None, id="null element"),
        pytest.param("json", '[{"index":-1}]', None, id="negative index in JSON"),
        pytest.param("json", '[{"count":1.0}]', None, id="float"),
        pytest.param("json", '[{"count":true}]', None, id="bool for a number"),
        pytest.param("json", '[{"id":7}]', None, id="number for a text"),
        pytest.param("json", '[{"health":1}]', None, id="number for a bool"),
        pytest.param("json", '[{"new":NaN}]', None, id="NaN is not JSON"),
        pytest.param("json", "{}", None, id="object"),
        pytest.param("json", "GPU-a,1,2,3,X,0,true:", None, id="CSV where JSON is due"),
        pytest.param("json", "[" * 100_000, None, id="nested beyond reason"),
        pytest.param("json", " " * 300_000, None, id="longer than an annotation"),
    ],
)  # fmt: skip
def test_read_as_the_schedulers_read_it(form: str, text: str, result: Any) -> None:
    if result is None:
        with pytest.raises(MalformedAnnotation) as refused:
            decode_register(text, form)
        assert len(str(refused.value)) < 300
    else:
        read = [(g.uuid, g.index, g.mode, g.healthy) for g in decode_register(text, form)]
        assert read == result


int32 = st.integers(-INT32_MAX - 1, INT32_MAX)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
csv_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=",:"), max_size=40)


def gpus_of(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[RegisteredGpu]]:
    one = st.builds(
        RegisteredGpu,
        uuid=text,
        index=st.integers(0, INT32_MAX),
        count=int32,
        memory_mib=int32,
        core_percent=int32,
        type=text,
        numa=int32,
        mode=text,
        healthy=st.booleans(),
    )
    return st.lists(one, min_size=1, max_size=5)


@given(gpus_of(texts))
def test_json_survives_the_wire(gpus: list[RegisteredGpu]) -> None:
    assert list(decode_register(encode_register(gpus, "json"), "json")) == gpus


@given(gpus_of(csv_texts))
def test_csv9_survives_the_wire(gpus: list[RegisteredGpu]) -> None:
    assert list(decode_register(encode_register(gpus, "csv9"), "csv9")) == gpus


@given(gpus_of(texts), st.sampled_from(["csv7", "csv9", "json"]))
def test_whatever_the_texts_we_write_what_we_can_read(gpus: list[RegisteredGpu], form: str) -> None:
    text = encode_register(gpus, form)
    read = decode_register(text, form)
    assert len(read) == len(gpus)
    assert [(g.count, g.healthy) for g in read] == [(g.count, g.healthy) for g in gpus]
    assert says_the_same(text, reversed(gpus), form)


@given(st.text(), st.sampled_from(["csv7", "csv9", "json"]))
def test_reading_is_total(text: str, form: str) -> None:
    with suppress(MalformedAnnotation):
        assert all(gpu.index >= 0 for gpu in decode_register(text, form))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "index", "count", "devmem", "type", "numa", "mode", "health", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_we_read_json_exactly_when_the_scheduler_does(value: Any) -> None:
    """Except for the null element, which crashes it and which we call malformed."""
    text = json.dumps(value)
    try:
        scheduler = [gpu.uuid for gpu in scheduler_reads(text, PROFILES["2.10"])]
    except UnreadableNode as error:
        scheduler = [] if "no gpu" in str(error) else None  # type: ignore[assignment]
    except Exception:  # noqa: BLE001 - SchedulerCrash
        scheduler = None  # type: ignore[assignment]
    try:
        ours = [gpu.uuid for gpu in decode_register(text, "json")]
    except MalformedAnnotation:
        ours = None  # type: ignore[assignment]
    assert ours == scheduler


@pytest.mark.parametrize(
    ("form", "release"), [("csv7", "2.4"), ("csv9", "2.7"), ("json", "2.8"), ("json", "2.10")]
)
def test_each_release_reads_its_form(form: str, release: str) -> None:
    offers = registered_gpus([gpu("GPU-b", 1), gpu("GPU-a", 0)], Sharing(split_count=4), form)
    seen = scheduler_reads(encode_register(offers, form), PROFILES[release])
    assert [(s.uuid, s.count, s.memory_mib, s.healthy) for s in seen] == [
        ("GPU-a", 4, 46068, True),
        ("GPU-b", 4, 46068, True),
    ]


@pytest.mark.parametrize(
    ("product", "csv", "json_"),
    [
        pytest.param("NVIDIA A40", "NVIDIA-NVIDIA A40", "NVIDIA A40", id="named NVIDIA"),
        pytest.param("Tesla T4", "NVIDIA-Tesla T4", "NVIDIA-Tesla T4", id="not named NVIDIA"),
        pytest.param("", "NVIDIA-", "NVIDIA-", id="nameless"),
    ],
)
def test_type_names(product: str, csv: str, json_: str) -> None:
    assert (type_name(product, "csv7"), type_name(product, "csv9")) == (csv, csv)
    assert type_name(product, "json") == json_


@pytest.mark.parametrize(
    ("sharing", "memory_mib", "core_percent"),
    [
        pytest.param(Sharing(), 46068, 100, id="as it is"),
        pytest.param(Sharing(memory_scaling=1.8), 82922, 100, id="memory is cut to whole MiB"),
        pytest.param(Sharing(core_scaling=0.57), 46068, 57, id="0.57 is 57 percent"),
        pytest.param(Sharing(memory_scaling=100, core_scaling=2), 4606800, 200, id="both"),
        pytest.param(Sharing(memory_scaling=1e6), INT32_MAX, 100, id="never over int32"),
        pytest.param(
            Sharing(mode="mig", memory_scaling=2, core_scaling=2),
            46068,
            100,
            id="MIG is not scaled",
        ),
    ],
)
def test_scaling(sharing: Sharing, memory_mib: int, core_percent: int) -> None:
    (offer,) = registered_gpus([gpu()], sharing, "json")
    assert (offer.memory_mib, offer.core_percent) == (memory_mib, core_percent)


def test_offers_are_sorted_and_carry_health_and_numa() -> None:
    offers = registered_gpus(
        [gpu("GPU-b", 1, numa_node=1), gpu("GPU-a", 0, unhealthy_reason="XID 79", numa_node=-1)],
        Sharing(),
        "json",
    )
    assert [(o.uuid, o.healthy, o.numa) for o in offers] == [
        ("GPU-a", False, 0),
        ("GPU-b", True, 1),
    ]


@pytest.mark.parametrize(
    ("form", "text", "same"),
    [
        pytest.param("json", '[{"id":"GPU-b","index":1},{"id":"GPU-a"}]', True, id="other order"),
        pytest.param(
            "json",
            '[ {"index":0,"id":"GPU-a"}, {"id":"GPU-b","index":1} ]',
            True,
            id="other spelling",
        ),
        pytest.param("json", '[{"id":"GPU-a"}]', False, id="one is missing"),
        pytest.param("json", '[{"id":"GPU-a"},{"id":"GPU-b","index":2}]', False, id="other index"),
        pytest.param("json", "nonsense", False, id="unreadable"),
        pytest.param("csv9", '[{"id":"GPU-a"},{"id":"GPU-b","index":1}]', False, id="other form"),
    ],
)
def test_what_needs_no_rewriting(form: str, text: str, same: bool) -> None:
    gpus = [RegisteredGpu(uuid="GPU-a", mode=""), RegisteredGpu(uuid="GPU-b", index=1, mode="")]
    assert says_the_same(text, gpus, form) is same


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        pytest.param([], "[]", id="no GPUs"),
        pytest.param([("GPU-a", {})], '[{"uuid":"GPU-a"}]', id="one GPU has no pairs"),
        pytest.param(
            [("GPU-a", {"GPU-c": 10, "GPU-b": 110}), ("GPU-b", {"GPU-a": 110})],
            '[{"uuid":"GPU-a","score":{"GPU-b":110,"GPU-c":10}},'
            '{"uuid":"GPU-b","score":{"GPU-a":110}}]',
            id="sorted",
        ),
    ],
)
def test_pair_scores(scores: list[tuple[str, dict[str, int]]], text: str) -> None:
    assert encode_scores(scores) == text
