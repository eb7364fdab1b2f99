"""How a launch is measured that comes while somebody else reads what was measured, or where there is no room.

It is waited for only where nothing is known of its kind, or where events tell nothing at all: what a wait
takes is charged, the program's own sleeps and others' turns included.
"""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled


@pytest.mark.parametrize(
    ("words", "by"),
    [
        pytest.param("", "events", id="nothing is in the way"),
        pytest.param("first", "events", id="the first of its context"),
        pytest.param("places:other", "events", id="events of another context are made anew"),
        pytest.param("read", "events", id="read, with room"),
        pytest.param("read places:own", "events", id="read, with events of this context"),
        pytest.param("read first", "nothing", id="read, the first of its context"),
        pytest.param("read first guess", "clock", id="read, the first of its context and kind"),
        pytest.param("read places:other", "nothing", id="read, events of another context only"),
        pytest.param("read places:other guess", "clock", id="the same, the first of its kind"),
        pytest.param("places:mostly", "nothing", id="no room for what need not be measured"),
        pytest.param("places:mostly always", "events", id="room for what is always measured"),
        pytest.param("places:kept always", "nothing", id="no room"),
        pytest.param("places:kept guess", "events", id="room is kept for the first of a kind"),
        pytest.param("places:taken guess", "nothing", id="no room at all"),
        pytest.param("contexts first", "clock", id="more contexts than are told apart"),
        pytest.param("ends", "clock", id="its context is about to end"),
        pytest.param("refused", "clock", id="the driver makes no events"),
        pytest.param("unreadable", "clock", id="the driver refused to say"),
    ],
)
def test_how_a_launch_is_measured(words: str, by: str) -> None:
    program = compiled("held_lane.c", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'tests/hook'}")
    ran = subprocess.run([program, *words.split()], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [by]
