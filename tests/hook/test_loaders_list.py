"""Programs that have the loader's record of libraries in their own hands, which we read, too."""

import pytest
from c_programs import compiled, driver, library
from hooked_programs import LIMIT, Node

OUT_OF_MEMORY = 2


@pytest.mark.parametrize(
    "flags",
    [pytest.param([], id="a copy of it"), pytest.param(["-DOWN"], id="one of their own")],
)
def test_what_they_open_deep_is_limited(node: Node, flags: list[str]) -> None:
    program = compiled("deep_list.c", "-ldl", "-rdynamic", *flags)
    opened = library("deep_plugin.c", str(driver()), "-ldl", name="libplugin.so")
    done = node.run_program(
        [str(program), str(opened), "linked"],
        **{LIMIT: "100m", "LD_LIBRARY_PATH": str(driver().parent)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{OUT_OF_MEMORY}\n", "")
