"""The scheduler's annotation: the vectors of HAMi's own codec, and every other text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.claims import (
    MAX_CHARS,
    decode_claims,
    encode_claims,
    erased,
    holds_devices,
    pending,
)
from agent.domain.grants import Claim
from agent.errors import MalformedAnnotation


def claim(uuid: str, memory_mib: int, core_percent: int, vendor: str = "NVIDIA") -> Claim:
    return Claim(uuid, vendor, memory_mib, core_percent)


A = claim("GPU-a", 3000, 30)
PADDING = claim("", 0, 0, vendor="")


@pytest.mark.parametrize(
    ("text", "slots", "after_erase"),
    [
        pytest.param("GPU-a,NVIDIA,3000,30:;", ((A,),), ";", id="1 one container, one vGPU"),
        pytest.param(
            "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,4000,30:;",
            ((A, claim("GPU-b", 4000, 30)),),
            ";",
            id="2 one container, two vGPUs",
        ),
        pytest.param(
            "GPU-a,NVIDIA,3000,0:;GPU-b,NVIDIA,5000,0:;",
            ((claim("GPU-a", 3000, 0),), (claim("GPU-b", 5000, 0),)),
            ";GPU-b,NVIDIA,5000,0:;",
            id="3 two containers",
        ),
        pytest.param(
            ";GPU-b,NVIDIA,5000,0:;",
            ((), (claim("GPU-b", 5000, 0),)),
            ";;",
            id="3' the second of two containers",
        ),
        pytest.param(
            ";GPU-b,NVIDIA,5000,0:;;",
            ((), (claim("GPU-b", 5000, 0),), ()),
            ";;;",
            id="3'' after an erase that lets the text grow",
        ),
        pytest.param(";GPU-a,NVIDIA,3000,30:;", ((), (A,)), ";;", id="4 first wants none"),
        pytest.param(
            ";GPU-a,NVIDIA,3000,30:;;GPU-b,NVIDIA,5000,0:;",
            ((), (A,), (), (claim("GPU-b", 5000, 0),)),
            ";;;GPU-b,NVIDIA,5000,0:;",
            id="5 gaps",
        ),
        pytest.param(
            ";;GPU-b,NVIDIA,5000,0:;;",
            ((), (), (claim("GPU-b", 5000, 0),), ()),
            ";;;;",
            id="6 leading and trailing gaps",
        ),
        pytest.param(
            "GPU-a,NVIDIA,1000,0:;;,,0,0:;",
            ((claim("GPU-a", 1000, 0),), (), (PADDING,)),
            ";;,,0,0:;",
            id="7 padding of HAMi up to 2.6",
        ),
        pytest.param(";", ((),), None, id="8 nothing left, one container"),
        pytest.param(";;", ((), ()), None, id="9 nothing left, two containers"),
        pytest.param("", (), None, id="10 empty"),
        pytest.param("GPU-a,NVIDIA,3000,30", ((A,),), ";", id="11 no terminators"),
        pytest.param("GPU-a,NVIDIA,3000,30,extra:;", ((A,),), ";", id="14 a fifth field"),
        pytest.param(
            "GPU-a[1-0],NVIDIA,10240,45:;",
            ((claim("GPU-a[1-0]", 10240, 45),),),
            ";",
            id="16 MIG suffix kept verbatim",
        ),
        pytest.param(
            "garbage:;GPU-a,NVIDIA,1,2:;",
            ((), (claim("GPU-a", 1, 2),)),
            ";;",
            id="17 a piece without a comma is no device",
        ),
        pytest.param(
            "GPU-a,NVIDIA,-1,30:;", ((claim("GPU-a", -1, 30),),), ";", id="19 negative memory"
        ),
        pytest.param(
            "GPU-a,NVIDIA,2147483647,-2147483648:;",
            ((claim("GPU-a", 2147483647, -2147483648),),),
            ";",
            id="the ends of int32",
        ),
        pytest.param(
            "GPU-a,NVIDIA,3000,30:;GPU-b,NVIDIA,5000,0:",
            ((A,), (claim("GPU-b", 5000, 0),)),
            ";GPU-b,NVIDIA,5000,0:;",
            id="joined as Volcano joins",
        ),
    ],
)
def test_vectors(text: str, slots: tuple[tuple[Claim, ...], ...], after_erase: str | None) -> None:
    decoded = decode_claims(text)
    assert decoded == slots
    open_slots = pending(decoded)
    assert bool(open_slots) == (after_erase is not None)
    if after_erase is not None:
        assert encode_claims(erased(decoded, min(open_slots))) == after_erase


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("GPU-a,NVIDIA,3000:;", "'GPU-a,NVIDIA,3000' has 3 of the 4", id="12 fields"),
        pytest.param("GPU-a,NVIDIA,abc,30:;", "memory 'abc' is no whole number", id="13 word"),
        pytest.param("GPU-a,NVIDIA,99999999999,30:;", "memory '99999999999'", id="15 over int32"),
        pytest.param(" GPU-a , NVIDIA , 3000 , 30 :;", "memory ' 3000 '", id="18 blanks"),
        pytest.param("GPU-a,NVIDIA,3000,2147483648:;", "core does not fit", id="just over int32"),
        pytest.param("GPU-a,NVIDIA,3_000,30:;", "memory '3_000'", id="Python's own numbers"),
        pytest.param("GPU-a,NVIDIA,٣,30:;", "memory '\\u0663'", id="digits that are not ASCII"),
        pytest.param("GPU-a,NVIDIA,,30:;", "memory ''", id="no number"),
        pytest.param(";" * 5000, "more than 2048 containers", id="too many containers"),
        pytest.param("a,b,1,1:" * 2000, "more than 1024 vGPUs", id="too many vGPUs"),
        pytest.param(("a,b,1,1:" * 60 + ";") * 20, "more than 1024 vGPUs", id="of all containers"),
        pytest.param("a,b,1,1;" * 2000, "more than 1024 vGPUs", id="one of each container"),
        pytest.param("a,NVIDIA?,1,1:;", "a character that no entry has", id="what was not ASCII"),
        pytest.param("x" * (MAX_CHARS + 1), "more than 262144 characters", id="too long"),
        pytest.param("a,b,1," + "9" * 200_000, "core '99999", id="a very long number"),
    ],
)
def test_refused_by_name(text: str, why: str) -> None:
    with pytest.raises(MalformedAnnotation) as refused:
        decode_claims(text)
    message = str(refused.value)
    assert why in message
    assert "delete the pod" in message
    assert len(message) < 600


INT32 = st.integers(-(2**31), 2**31 - 1)
FIELD = st.text(st.characters(exclude_characters=",:;?", codec="utf-8"), max_size=50)
CLAIMS = st.builds(Claim, FIELD, FIELD, INT32, INT32)
SLOTS = st.lists(st.lists(CLAIMS, max_size=4).map(tuple), max_size=6).map(tuple)


@given(SLOTS)
def test_claims_survive_the_wire(slots: tuple[tuple[Claim, ...], ...]) -> None:
    assert decode_claims(encode_claims(slots)) == slots


@given(SLOTS, st.data())
def test_an_erase_keeps_the_other_slots_in_place(
    slots: tuple[tuple[Claim, ...], ...], data: st.DataObject
) -> None:
    if not slots:
        return
    place = data.draw(st.integers(0, len(slots) - 1))
    after = decode_claims(encode_claims(erased(slots, place)))
    assert after == (*slots[:place], (), *slots[place + 1 :])


@given(st.text(st.sampled_from("GPU-a,:;0123456789NVIDIA []_+ \n"), max_size=200) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        slots = decode_claims(text)
    except MalformedAnnotation:
        return
    assert decode_claims(encode_claims(slots)) == slots


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        pytest.param("DCU-1,DCU,1000,10:;", True, id="a device"),
        pytest.param(";;DCU-1,DCU,x:", True, id="a malformed device is one all the same"),
        pytest.param(";;", False, id="only empty slots"),
        pytest.param(",,0,0:;", False, id="padding"),
        pytest.param("", False, id="empty"),
        pytest.param("hello", False, id="anything else"),
    ],
)
def test_whether_another_vendors_annotation_holds_devices(text: str, *, holds: bool) -> None:
    assert holds_devices(text) is holds


@given(st.text())
def test_holds_devices_is_total(text: str) -> None:
    assert holds_devices(text) in (True, False)
