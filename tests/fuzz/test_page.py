"""The page says by which words it was written."""

import pytest

from tests.fuzz.run import Tried, page

ABOUT = {"commit": "1234abc", "date": "2026-01-31", "machine": "2 x processors, Linux 6"}
TRIED = Tried("names", inputs=12, places=3, kept=1, borne=True)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        pytest.param((), "python3 build.py fuzz", id="the default"),
        pytest.param(("--seconds", "8"), "python3 build.py fuzz --seconds 8", id="shorter"),
    ],
)
def test_the_page_names_the_command(words: tuple[str, ...], command: str) -> None:
    text = page([TRIED], 8, ABOUT, words)
    assert f"- command: `{command}`" in text.splitlines()
    assert "- commit: 1234abc" in text.splitlines()
    assert "| names | 12 | 3 | 1 | yes |" in text.splitlines()
