"""Which of a machine's apt entries are used, in both formats that apt knows."""

from pathlib import Path

import pytest
from peers.debian_archive import (
    DebianArchive,
    PeersUnavailable,
    deb822_entries,
    one_line_entries,
)

ARCHIVE = "http://archive.test/debian"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"deb {ARCHIVE} bookworm main contrib # ours",
            [f"deb {ARCHIVE} bookworm main", f"deb-src {ARCHIVE} bookworm main"],
            id="narrowed to main, and with sources",
        ),
        pytest.param(
            f"deb [arch=amd64 signed-by=/k.gpg] {ARCHIVE} bookworm main",
            [
                f"deb [arch=amd64 signed-by=/k.gpg] {ARCHIVE} bookworm main",
                f"deb-src [arch=amd64 signed-by=/k.gpg] {ARCHIVE} bookworm main",
            ],
            id="options are kept",
        ),
        pytest.param(f"# deb {ARCHIVE} bookworm main", [], id="commented out"),
        pytest.param(f"deb {ARCHIVE} bookworm-updates main", [], id="another suite"),
        pytest.param(f"deb {ARCHIVE} bookworm contrib", [], id="another component"),
        pytest.param(f"deb {ARCHIVE} ./", [], id="a flat repository"),
        pytest.param("", [], id="empty"),
    ],
)
def test_one_line_entries(text: str, expected: list[str]) -> None:
    assert one_line_entries(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "Types: deb\n# a remark\nURIs: u\nSuites: bookworm bookworm-updates\n"
            "Components: main contrib\nSigned-By: /k.gpg\n",
            ["Types: deb deb-src\nURIs: u\nSuites: bookworm\nComponents: main\nSigned-By: /k.gpg"],
            id="narrowed to main, and with sources",
        ),
        pytest.param(
            "Types: deb\nURIs: u\nSuites: bookworm\nComponents: main\nSigned-By:\n -----\n .\n k\n",
            [
                (
                    "Types: deb deb-src\nURIs: u\nSuites: bookworm\nComponents: main\n"
                    "Signed-By: \n -----\n .\n k"
                )
            ],
            id="a key that stands in the file",
        ),
        pytest.param(
            "Enabled: no\nTypes: deb\nURIs: u\nSuites: bookworm\nComponents: main\n",
            [],
            id="disabled",
        ),
        pytest.param(
            "Types: deb\nURIs: u\nSuites: trixie\nComponents: main\n\n\n"
            "types: deb\nuris: u\nsuites: bookworm\ncomponents: main\n",
            ["types: deb deb-src\nuris: u\nsuites: bookworm\ncomponents: main"],
            id="the second stanza, in lower case",
        ),
        pytest.param(" stray\n\nnonsense\n", [], id="not a source at all"),
    ],
)
def test_deb822_entries(text: str, expected: list[str]) -> None:
    assert deb822_entries(text) == expected


def test_a_machine_without_bookworm_is_told_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(f"deb {ARCHIVE} trixie main\n")
    with pytest.raises(PeersUnavailable, match="bookworm main"):
        DebianArchive(directory=tmp_path / "apt").prepare(etc_apt=tmp_path)
