"""How often what is being measured is looked at: more often where short turns of others would be missed."""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled


@pytest.mark.parametrize(
    ("words", "every_us"),
    [
        pytest.param("", 1000, id="nothing was launched"),
        pytest.param("lane contended", 1000, id="beside others"),
        pytest.param("lane sweep", 1000, id="all is measured, alone"),
        pytest.param("lane sweep contended", 250, id="all is measured, beside others"),
        pytest.param("lane long contended", 1000, id="for long: what is kept of looks is a second"),
        pytest.param("another lane", 500, id="another GPU is looked at more often"),
        pytest.param(
            "another lane sweep contended", 250, id="this one is, though that comes first"
        ),
        pytest.param("lane contexts", 500, id="several contexts take turns"),
        pytest.param("lane contexts sweep contended", 250, id="these beside others"),
    ],
)
def test_a_sweep_beside_others_is_looked_at_often(words: str, every_us: int) -> None:
    """A turn of others that falls between two looks is taken for the launches it held up."""
    program = compiled("poll_every.c", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'tests/hook'}")
    said = subprocess.run([program, *words.split()], capture_output=True, check=True).stdout
    assert int(said) == every_us
