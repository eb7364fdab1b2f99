"""Amounts of memory and shares as people write them: read exactly so, or refused."""

import ctypes
import re
import subprocess
import sys
from fractions import Fraction
from math import ceil, floor

import pytest
from built_hook import ROOT, compiler
from hypothesis import example, given
from hypothesis import strategies as st

UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture(scope="module")
def amounts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """amounts.c with its functions visible."""
    path = tmp_path_factory.mktemp("amounts") / "amounts.so"
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, "-shared", "amounts.c", "-o", str(path)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    library = ctypes.CDLL(str(path))
    library.parse_bytes.restype = ctypes.c_bool
    library.parse_percent.restype = ctypes.c_bool
    return library


def bytes_by_c(amounts: ctypes.CDLL, text: str) -> int | None:
    parsed = ctypes.c_uint64(77)
    if amounts.parse_bytes(text.encode("latin-1"), ctypes.byref(parsed)):
        return parsed.value
    assert parsed.value == 77
    return None


def permille_by_c(amounts: ctypes.CDLL, text: str) -> int | None:
    parsed = ctypes.c_uint32(77)
    if amounts.parse_percent(text.encode("latin-1"), ctypes.byref(parsed)):
        return parsed.value
    assert parsed.value == 77
    return None


# --- the oracle -----------------------------------------------------------------------------------

FORM = re.compile(
    r"[ \t]*\+?(?:0[xX](?P<hex>[0-9a-fA-F]+)|(?P<whole>[0-9]+))(?:\.(?P<fraction>[0-9]+))?"
    r"[ \t]*(?P<unit>[^ \t\r\n]{0,7})[ \t\r\n]*",
)
UNIT = re.compile(r"b?|(?P<letter>[kmgt])(?:i?b|i)?", re.IGNORECASE)


def number(text: str) -> tuple[int, Fraction, bool, str] | None:
    """Whole part, the first six digits behind the point, whether it is more than 0, the unit."""
    found = FORM.fullmatch(text)
    if not found:
        return None
    whole = int(found["hex"], 16) if found["hex"] else int(found["whole"])
    if whole >= 1 << 64:
        return None
    digits = found["fraction"] or "0"
    fraction = Fraction(int(digits[:6]), 10 ** len(digits[:6]))
    return whole, fraction, bool(whole or int(digits)), found["unit"]


def shift_of(unit: str) -> int | None:
    found = UNIT.fullmatch(unit)
    return UNITS[(found["letter"] or "").lower()] if found else None


def bytes_by_oracle(text: str) -> int | None:
    """0 is none; what is more than 0 and comes to less than a byte is refused, as is all else."""
    found = number(text)
    shift = shift_of(found[3]) if found else None
    if not found or shift is None:
        return None
    whole, fraction, something, _ = found
    has_point = "." in text
    if whole << (shift + 1) >= 1 << 64 or (has_point and shift == 0):
        return None
    amount = floor((whole + fraction) * 2**shift)
    return None if something and not amount else amount


def permille_by_oracle(text: str) -> int | None:
    """Rounded up to a tenth of a percent; 1000 is the whole GPU."""
    found = number(text)
    if not found or found[3] not in ("", "%"):
        return None
    whole, fraction, something, _ = found
    share = min(ceil((whole + fraction) * 10), 1000)
    return None if something and not share else share


# Nearly an amount, so that most of the rules are met.
letters = st.sampled_from("0123456789.+-%xkKmMgGtTiIbB \t\n;,e")
written = st.one_of(
    st.text(letters, max_size=12),
    st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", " ", "+", "0x", "-", "\t+"]),
        st.integers(0, 1 << 66) | st.integers(0, 120),
        st.just("") | st.builds(".{}".format, st.text("0123456789", max_size=9))
        | st.builds(".{}{}".format, st.just("0" * 5), st.text("0123456789", max_size=3)),
        st.sampled_from(["", " "]),
        st.sampled_from(["", "b", "k", "Ki", "KiB", "m", "MB", "Mib", "g", "t", "%", "x", "kk", "bi"]),
    ),
)  # fmt: skip


@given(written)
@example("0.0001k")
@example("0.0000001g")
@example("0.000001k")
@example("8796093022207.9t")
def test_an_amount_of_memory_is_what_its_text_says(amounts: ctypes.CDLL, text: str) -> None:
    assert bytes_by_c(amounts, text) == bytes_by_oracle(text)


@given(written)
@example("0.00000001")
@example("0.000001%")
@example("0.5k")
@example("99.99")
@example("99.90001")
def test_a_share_is_what_its_text_says(amounts: ctypes.CDLL, text: str) -> None:
    assert permille_by_c(amounts, text) == permille_by_oracle(text)


@given(st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=40))
def test_any_text_is_an_amount_or_is_refused(amounts: ctypes.CDLL, text: str) -> None:
    if bytes_by_c(amounts, text) is not None:
        assert text.strip(" \t").removeprefix("+")[:1].isdigit()
    share = permille_by_c(amounts, text)
    assert share is None or share <= 1000


# --- in words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("4096m", 4096 * MIB, id="a whole number"),
        pytest.param("4.5g", 4608 * MIB, id="a fraction"),
        pytest.param("0.001k", 1, id="a byte, and a bit that is dropped"),
        pytest.param("0.000001g", 1073, id="the sixth digit counts"),
        pytest.param("0.0000010g", 1073, id="and a 0 behind it says nothing"),
        pytest.param("0x10k", 16 << 10, id="hexadecimal"),
        pytest.param("0", 0, id="0 is none"),
        pytest.param("0.0k", 0, id="0 with a point is none"),
        pytest.param("0.0000000k", 0, id="0 with many digits is none"),
        pytest.param("0.0001k", None, id="less than a byte"),
        pytest.param("0.0009765624k", None, id="nearly a byte"),
        pytest.param("0.0000001g", None, id="lost behind the sixth digit"),
        pytest.param("0.00000010g", None, id="lost, and a 0 behind it"),
        pytest.param("0.5", None, id="half a byte"),
        pytest.param("-0", None, id="negative, and nothing"),
        pytest.param("-1k", None, id="negative"),
        pytest.param("+-1k", None, id="two signs"),
        pytest.param("nan", None, id="not a number"),
        pytest.param("inf", None, id="endless"),
        pytest.param("1e3", None, id="an exponent"),
        pytest.param("1,5g", None, id="a comma"),
        pytest.param("1.5.5g", None, id="two points"),
        pytest.param("4g!", None, id="trailing garbage"),
        pytest.param("4g 1", None, id="trailing amount"),
        pytest.param("4ibibibib", None, id="a long unit"),
        pytest.param("18446744073709551616", None, id="one more than 64 bits"),
        pytest.param("18446744073709551615k", None, id="64 bits with a unit"),
        pytest.param("9223372036854775807", (1 << 63) - 1, id="the most there can be"),
        pytest.param("9223372036854775808", None, id="a byte more"),
        pytest.param("8388607.9t", floor(Fraction("8388607.9") * 2**40), id="a large fraction"),
        pytest.param("8388608t", None, id="2 to the 63"),
        pytest.param("", None, id="empty"),
        pytest.param(" ", None, id="a blank"),
        pytest.param("4g\r\n", 4 * GIB, id="a line's end behind it"),
    ],
)
def test_an_amount_of_memory(amounts: ctypes.CDLL, text: str, value: int | None) -> None:
    assert bytes_by_c(amounts, text) == bytes_by_oracle(text) == value


@pytest.mark.parametrize(
    ("text", "permille"),
    [
        pytest.param("50", 500, id="a number"),
        pytest.param("50%", 500, id="with its sign"),
        pytest.param("12.5", 125, id="a tenth"),
        pytest.param("33.33 %", 334, id="never less than asked"),
        pytest.param("0x32", 500, id="hexadecimal"),
        pytest.param("010", 100, id="a leading zero is no octal"),
        pytest.param("0", 0, id="0 says nothing"),
        pytest.param("0.000", 0, id="0 says nothing, with a point too"),
        pytest.param("0.01", 1, id="not nothing"),
        pytest.param("0.00000001", None, id="lost behind the sixth digit"),
        pytest.param("100", 1000, id="all of it"),
        pytest.param("99.95", 1000, id="all of it, rounded up"),
        pytest.param("150", 1000, id="more than all"),
        pytest.param("5k", None, id="a unit of memory"),
        pytest.param("30m", None, id="in the form of the memory limit"),
        pytest.param("0.2g", None, id="the same with a fraction"),
        pytest.param("30b", None, id="bytes"),
        pytest.param("-5", None, id="negative"),
        pytest.param("nan", None, id="not a number"),
        pytest.param("abc", None, id="no number"),
        pytest.param("%", None, id="only the sign"),
        pytest.param("50%%", None, id="two signs"),
        pytest.param("50 % of it", None, id="trailing garbage"),
        pytest.param("99999999999999999999", None, id="more than 64 bits"),
    ],
)
def test_a_share_is_a_percentage(amounts: ctypes.CDLL, text: str, permille: int | None) -> None:
    assert permille_by_c(amounts, text) == permille_by_oracle(text) == permille
