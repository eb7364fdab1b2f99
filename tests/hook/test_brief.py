"""The lock that bytes and blocks are changed under: brief.c by itself."""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("counted", id="threads count one after another"),
        pytest.param("held", id="who wants it waits until it is let go, and errno stays"),
        pytest.param("cloned", id="a child that no handler of fork saw takes its copy"),
    ],
)
def test_one_has_it_at_a_time(way: str) -> None:
    program = compiled("brief.c", f"-I{ROOT / 'hook'}", str(ROOT / "hook" / "brief.c"), "-lpthread")
    done = subprocess.run([program, way], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
