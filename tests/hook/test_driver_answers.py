"""The driver's answer comes back as it is: every function, before cuInit, without a context, refused, with NULL."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from c_programs import compiled
from hook_table import cuda_symbols, parameters
from hooked_programs import LIMIT, Node

NOT_THERE = -1000  # what call_each.c says of a function that the driver lacks
REFUSED = 719  # CUDA_ERROR_LAUNCH_FAILED: nobody else gives it here


@dataclass(frozen=True)
class Answer:
    """Of one call: CUresult, or -signal, and bytes in use before and after."""

    result: int
    before: int
    after: int


def letter(kind: str) -> str:
    """How call_each.c is told of a parameter: pointer, number, or handle."""
    if "*" in kind:
        return "p"
    is_number = re.search(r"\b(size_t|int|unsigned|long|cuuint64_t)\b", kind)
    return "n" if is_number else "h"


@pytest.fixture(params=["0", "50"], ids=["", "a share"])
def percent(request: pytest.FixtureRequest) -> str:
    """Of the GPU's time: with a share, what launches passes the gate as well."""
    return str(request.param)


def answers(
    node: Node,
    tmp_path: Path,
    state: str,
    arguments: str,
    code: int,
    *,
    hook: bool,
    percent: str = "0",
) -> dict[str, Answer]:
    """What each function of the table answers."""
    kinds = {row.name: "".join(map(letter, parameters(row.name))) for row in cuda_symbols()}
    kinds["cuInit"] = "h"  # its flags must be 0
    words = [f"{name}:{letters}" for name, letters in kinds.items()]
    config = tmp_path / f"{'hooked' if hook else 'bare'}.conf"
    config.write_text(node.sim.config_path.read_text())
    env = {LIMIT: "1g", "CUDA_DEVICE_SM_LIMIT": percent} | ({} if hook else {"LD_PRELOAD": ""})
    program = compiled("call_each.c", "-ldl")
    done = node.run_program([str(program), str(config), state, arguments, str(code), *words], **env)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (line.split() for line in done.stdout.splitlines())
    told = {name: Answer(*map(int, numbers)) for name, *numbers in lines}
    assert set(told) == {row.name for row in cuda_symbols()}, "each function was called"
    assert NOT_THERE not in {answer.result for answer in told.values()}
    return told


@pytest.mark.parametrize("arguments", ["buffers", "null"])
@pytest.mark.parametrize(
    "state",
    [
        pytest.param("none", id="before cuInit"),
        pytest.param("started", id="no context"),
        pytest.param("current", id="context"),
    ],
)
def test_calls_answer_as_without_us(
    node: Node, tmp_path: Path, state: str, arguments: str, percent: str
) -> None:
    bare = answers(node, tmp_path, state, arguments, 0, hook=False)
    hooked = answers(node, tmp_path, state, arguments, 0, hook=True, percent=percent)
    assert len(bare) > 90
    different = {
        name: (answer.result, hooked[name].result)
        for name, answer in bare.items()
        if answer.result >= 0 and hooked[name].result != answer.result
    }
    if arguments == "null" and state != "current":  # two errors at once: which comes first is open
        different = {name: both for name, both in different.items() if 0 in both}
    assert different == {}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("started", id="no context"),
        pytest.param("current", id="context"),
    ],
)
def test_a_refusal_of_the_driver_comes_back_and_leaves_nothing_charged(
    node: Node, tmp_path: Path, state: str, percent: str
) -> None:
    bare = answers(node, tmp_path, state, "buffers", REFUSED, hook=False)
    hooked = answers(node, tmp_path, state, "buffers", REFUSED, hook=True, percent=percent)
    everything = {row.name for row in cuda_symbols()}
    assert {name for name, answer in bare.items() if answer.result != REFUSED} == set()
    assert {name for name, answer in hooked.items() if answer.result != REFUSED} == set()
    assert {name: hooked[name].after - hooked[name].before for name in everything} == dict.fromkeys(
        everything, 0
    )
