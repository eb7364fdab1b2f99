"""Requests for other limits: what is understood, and what is said of the rest."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.limit_requests import (
    AnnotationEntry,
    LimitRequest,
    MalformedRequest,
    SocketRequest,
    annotation_digest,
    annotation_entry,
    parse_annotation,
    parse_body,
    parse_cores,
    parse_memory,
    strangers,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("8Gi", 8192 * MIB, id="binary"),
        pytest.param("8192Mi", 8192 * MIB, id="in MiB"),
        pytest.param("1.5Gi", 1536 * MIB, id="fraction"),
        pytest.param("8G", 8 * 10**9, id="decimal"),
        pytest.param("2097152", 2 * MIB, id="bytes"),
        pytest.param("1.9999999Mi", 2097151, id="rounded down"),
        pytest.param("1Mi", MIB, id="the least"),
        pytest.param("1024Ti", 1 << 50, id="the most"),
    ],
)
def test_memory(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param("8", "a number alone is bytes", id="a bare number"),
        pytest.param("0", "comes back with reset", id="zero"),
        pytest.param("1023Ki", "less than 1 MiB", id="little"),
        pytest.param("1025Ti", "more than any GPU has", id="much"),
        pytest.param("9" * 18 + "Ti", "more than any GPU has", id="absurd"),
        pytest.param("8GB", "no amount of memory", id="another unit"),
        pytest.param("-8Gi", "no amount of memory", id="negative"),
        pytest.param("1e3Mi", "no amount of memory", id="exponent"),
        pytest.param(" 8Gi", "no amount of memory", id="blank"),
        pytest.param("٨Gi", "no amount of memory", id="other digits"),
        pytest.param("8Gi\n", "no amount of memory", id="line end"),
        pytest.param(8192, "write a text such as 8Gi", id="number"),
        pytest.param("9" * 100_000, "no amount of memory", id="long"),
    ],
)
def test_what_is_no_memory(value: Any, said: str) -> None:
    with pytest.raises(MalformedRequest, match=said) as caught:
        parse_memory(value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 10), (100, 1000), ("40", 400), ("40%", 400), ("none", 0)],
)
def test_cores(value: Any, expected: int) -> None:
    assert parse_cores(value) == expected


@pytest.mark.parametrize(
    "value", [0, 101, -1, 40.0, True, None, "", "0", "101", "all", "40 %", "٤", [], 10**500]
)
def test_what_is_no_share(value: Any) -> None:
    with pytest.raises(MalformedRequest, match="1 to 100, or none") as caught:
        parse_cores(value)
    assert len(str(caught.value)) < 300


def body(**value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            body(pod="ns/p", container="c", memory="1Gi"),
            SocketRequest(target="ns/p/c", limits=LimitRequest(memory_bytes=1 << 30)),
            id="memory",
        ),
        pytest.param(
            body(pod="ns/p", container="c", gpu=3, cores=40, force=True),
            SocketRequest(
                target="ns/p/c", limits=LimitRequest(gpu="3", core_permille=400), force=True
            ),
            id="cores of one GPU, by force",
        ),
        pytest.param(
            body(target="p", reset=True, gpu="GPU-x", memory=None),
            SocketRequest(target="p", limits=LimitRequest(gpu="GPU-x", reset=True)),
            id="reset",
        ),
        pytest.param(
            body(pod="ns/p", cores="none"),
            SocketRequest(target="ns/p", limits=LimitRequest(core_permille=0)),
            id="the only container",
        ),
    ],
)
def test_a_body(content: bytes, expected: SocketRequest) -> None:
    assert parse_body(content) == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "no JSON", id="empty"),
        pytest.param(b"\xff\xfe", "no JSON", id="bytes"),
        pytest.param(b"[" * 60_000, "no JSON", id="deep"),
        pytest.param(b"[]", "has to be a JSON object", id="list"),
        pytest.param(b" " * 70_000, "more than 65536 bytes", id="long"),
        pytest.param(body(pod="a/b", memory="1Gi", Cores=3), "known are: pod, container", id="key"),
        pytest.param(body(memory="1Gi"), "not said whose", id="nobody"),
        pytest.param(body(pod="a/b", target="a/b", memory="1Gi"), "not said whose", id="twice"),
        pytest.param(body(target=["a"], memory="1Gi"), "is no name", id="name"),
        pytest.param(body(target="a\nb", memory="1Gi"), "is no name", id="two lines"),
        pytest.param(body(target="a" * 500, memory="1Gi"), "is no name", id="long name"),
        pytest.param(body(pod="a/b"), "nothing is asked for", id="nothing"),
        pytest.param(body(pod="a/b", reset=True, cores=3), "no place beside it", id="both"),
        pytest.param(body(pod="a/b", reset="yes"), "neither true nor false", id="reset"),
        pytest.param(body(pod="a/b", force=1, cores=3), "neither true nor false", id="force"),
        pytest.param(body(pod="a/b", gpu=-1, cores=3), "number that nvidia-smi shows", id="gpu"),
        pytest.param(body(pod="a/b", gpu={}, cores=3), "number that nvidia-smi shows", id="gpu {}"),
    ],
)
def test_what_is_no_body(content: bytes, said: str) -> None:
    with pytest.raises(MalformedRequest, match=said) as caught:
        parse_body(content)
    assert len(str(caught.value)) < 300


def test_an_annotation_names_containers_and_what_is_wrong_with_one_is_not_the_others_matter() -> (
    None
):
    text = (
        '{"main": {"memory": "8Gi", "cores": 40}, "side": [{"gpu": "0", "cores": "none"},'
        ' {"gpu": 1, "memory": "1Gi"}], "odd": {"memory": 8}, "none": []}'
    )
    found = parse_annotation(text)
    assert found["main"].limits == (LimitRequest(memory_bytes=8 << 30, core_permille=400),)
    assert found["side"].limits == (
        LimitRequest(gpu="0", core_permille=0),
        LimitRequest(gpu="1", memory_bytes=1 << 30),
    )
    assert found["odd"].limits == ()
    assert "no amount of memory" in found["odd"].problem
    assert "0 entries" in found["none"].problem
    assert annotation_entry(text, "main") == found["main"]
    assert annotation_entry(text, "nobody") is None


@pytest.mark.parametrize(("text", "shown"), [
    pytest.param('{"main": {}}', "", id="nobody"),
    pytest.param('{"mian": {}, "main": {}}', "'mian'", id="one"),
    pytest.param('{"b": 1, "a": 2}', "'a', 'b'", id="two"),
    pytest.param(json.dumps({f"c{n}": {} for n in range(9)}),
                 "'c0', 'c1', 'c2', 'c3', 'c4' and 4 more", id="many"),
    pytest.param('{"": {}}', "''", id="an empty name"),
    pytest.param("{", "", id="no JSON"),
    pytest.param("[]", "", id="a list"),
])  # fmt: skip
def test_names_that_are_nobodys(text: str, shown: str) -> None:
    assert strangers(text, {"main"}).shown == shown


def test_what_is_said_of_a_stranger_tells_one_request_from_another() -> None:
    one = strangers('{"x": {"memory": "1Gi"}, "main": {"cores": 1}}', {"main"})
    same = strangers('{"main": {"cores": 2}, "x": {"memory": "1Gi"}}', {"main"})
    other = strangers('{"x": {"memory": "2Gi"}}', {"main"})
    assert one == same
    assert one.digest != other.digest
    assert strangers('{"main": {"cores": 2}}', {"main"}).digest == ""


def test_the_same_words_in_another_order_are_the_same_request() -> None:
    one = annotation_entry('{"c": {"memory": "8Gi", "cores": 40}}', "c")
    other = annotation_entry('{"x": 1, "c":{"cores":40,"memory":"8Gi"}}', "c")
    third = annotation_entry('{"c": {"memory": "8Gi", "cores": 41}}', "c")
    assert one == other
    assert one is not None
    assert third is not None
    assert one.digest != third.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", "no JSON", id="empty"),
        pytest.param("8Gi", "no JSON", id="text"),
        pytest.param("[1]", "has to be a JSON object", id="list"),
        pytest.param("{" + " " * 20_000, "more than 16384", id="long"),
        pytest.param('{"c":' + "[" * 8000 + "]" * 8000 + "}", "no JSON|deep", id="deep"),
        pytest.param('{"c": {"memory": "1Gi", "force": true}}', "known are: gpu", id="force"),
        pytest.param('{"c": {"memory": "1Gi", "reset": true}}', "known are: gpu", id="reset"),
        pytest.param('{"c": "8Gi"}', "has to be a JSON object", id="short"),
    ],
)
def test_what_is_no_annotation(text: str, said: str) -> None:
    entry = annotation_entry(text, "c")
    assert entry is not None
    assert entry.limits == ()
    assert any(words in entry.problem for words in said.split("|"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["c", "pod", "container", "target", "gpu", "memory", "cores", "reset"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused(content: bytes) -> None:
    try:
        limits = parse_body(content).limits
    except MalformedRequest as error:
        if not 0 < len(str(error)) < 400:
            raise AssertionError("nobody reads that") from error
        return
    assert limits.reset == (limits.memory_bytes is None and limits.core_permille is None)


@given(st.text(max_size=200) | JSON.map(json.dumps))
def test_any_annotation_is_read_or_has_a_problem(text: str) -> None:
    found = strangers(text, {"c"})
    assert bool(found.digest) == bool(found.names)
    assert len(found.shown) < 500
    entry = annotation_entry(text, "c")
    assert annotation_digest(text, "c") == (entry.digest if entry else "")
    if entry is not None:
        assert isinstance(entry, AnnotationEntry)
        assert bool(entry.limits) != bool(entry.problem)
        assert len(entry.digest) == 64
        assert len(entry.problem) < 400


@given(st.integers(1, 1 << 30), st.sampled_from(["Mi", "Gi", "Ki"]))
def test_a_quantity_says_what_it_says(count: int, unit: str) -> None:
    expected = count << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]
    if MIB <= expected <= 1 << 50:
        assert parse_memory(f"{count}{unit}") == expected
    else:
        with pytest.raises(MalformedRequest):
            parse_memory(f"{count}{unit}")
