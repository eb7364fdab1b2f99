"""The licence texts that are kept here: each is of a part of the release, and it is told where it is from."""

import re
from pathlib import Path

import pytest
from bundling.licences import third_party
from bundling.shipped import (
    FULL_TEXTS,
    IN_CPYTHON,
    IN_GRPCIO,
    IN_PROTOBUF,
    NOTICES,
    Component,
    _copyright,
)

CARRIED = {*IN_CPYTHON, *IN_GRPCIO, *IN_PROTOBUF, "cpython-incorporated", "libyaml"}
TEXTS = {path.stem: path for path in NOTICES.glob("*.txt")}


def test_there_is_one_for_every_part_that_brings_none_and_no_more() -> None:
    assert set(TEXTS) == {*CARRIED, *FULL_TEXTS}


def test_where_each_is_from_is_told() -> None:
    rows = re.findall(
        r"^\| (\S+) \| .+ \| .+ \|$", (NOTICES / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(set(rows) - {"text", "---"}) == sorted(CARRIED)


@pytest.mark.parametrize("name", sorted(CARRIED))
def test_it_names_its_authors(name: str) -> None:
    text = TEXTS[name].read_text()
    owners = re.findall(
        r"(?i)copyright (?:\(c\)|©|\d{4}|the)|^ ?\(C\) \d{4}|public domain", text, re.MULTILINE
    )
    assert owners, text[:200]


def test_what_comes_with_a_package_of_debian_is_read_from_it() -> None:
    """That of libstdc++6 and libgcc-s1 leads to gcc-10-base."""
    text = _copyright("gcc-10-base")
    assert "libstdc++-v3" in text
    assert "GCC RUNTIME LIBRARY EXCEPTION" in text
    assert "GNU C Library" in _copyright("libc6")


def test_a_text_that_serves_many_is_there_once(tmp_path: Path) -> None:
    def part(name: str, notice: str) -> Component:
        return Component(name=name, version="1", licence="MIT", purl="", notices=(notice,))

    text = third_party([part("a", "one\n\n"), part("b", "\none  "), part("c", "two")])
    titles = [line for line in text.splitlines() if re.fullmatch(r"[abc] 1(, [abc] 1)*", line)]
    assert titles == ["a 1, b 1", "c 1"]
    assert text.count("\none\n") == 1
