"""The hook in real CUDA processes: a limit is all that they see, and all that they get."""

import pytest
from gpu.conftest import Limits, Programs
from gpu.machine import LIMIT

OUT_OF_MEMORY = 2


def test_a_limit_is_what_cuda_says_there_is(start: Programs) -> None:
    program = start(**{LIMIT: "1024m"})
    room_mib, total_mib = program.ask("info_mib()")
    assert total_mib == program.ask("total_mib()") == 1024
    assert room_mib <= 1024


@pytest.mark.parametrize(
    ("allocate", "give_back"),
    [
        pytest.param("alloc({})", "free({})", id="cuMemAlloc"),
        pytest.param(
            "alloc({}, 'cuMemAllocAsync', None)",
            "free({}, 'cuMemFreeAsync', None)",
            id="cuMemAllocAsync",
        ),
    ],
)
def test_below_the_limit_is_given_above_is_refused_and_what_is_freed_comes_back(
    start: Programs, limited: Limits, allocate: str, give_back: str
) -> None:
    program = start(**limited(1))
    before_mib = program.ask("used_mib()")
    result, address = program.ask(allocate.format(512))
    assert result == 0
    assert program.ask("used_mib()") - before_mib == 512
    refused, _ = program.ask(allocate.format(600))
    assert refused == OUT_OF_MEMORY
    assert program.ask("used_mib()") - before_mib == 512
    assert program.ask(give_back.format(address)) == 0
    assert program.ask("cuda.cuCtxSynchronize()") == 0  # until then a pool keeps what it has
    assert program.ask("used_mib()") == before_mib
    assert program.ask(allocate.format(600))[0] == 0
    assert program.end() == 0


def test_the_refusal_is_the_hooks_and_not_the_drivers(start: Programs, limited: Limits) -> None:
    """Without the hook the same program gets more than the limit."""
    assert start(**limited(1)).ask("alloc(1100)")[0] == OUT_OF_MEMORY
    free_program = start(hook="no", **limited(1))
    room_mib, total_mib = free_program.ask("info_mib()")
    if room_mib < 2 * 1100:
        pytest.skip(f"only {room_mib} of {total_mib} MiB are free on this GPU")
    assert free_program.ask("alloc(1100)")[0] == 0


def test_without_a_limit_there_is_none(start: Programs) -> None:
    _, hooked_mib = start().ask("info_mib()")
    _, plain_mib = start(hook="no").ask("info_mib()")
    assert hooked_mib == plain_mib


def test_two_processes_of_a_container_share_one_limit(start: Programs, limited: Limits) -> None:
    first, second = start(**limited(2)), start(**limited(2))
    result, address = first.ask("alloc(600)")
    assert result == 0
    assert second.ask("alloc(600)")[0] == OUT_OF_MEMORY
    assert second.ask("alloc(400)")[0] == 0
    assert first.ask("used_mib()") == second.ask("used_mib()") >= 1000
    assert first.ask(f"free({address})") == 0
    assert second.ask("alloc(600)")[0] == 0


def test_what_a_killed_process_had_comes_back(start: Programs, limited: Limits) -> None:
    first, second = start(**limited(2)), start(**limited(2))
    assert first.ask("alloc(900)")[0] == 0
    assert second.ask("alloc(900)")[0] == OUT_OF_MEMORY
    first.kill()
    assert second.ask("alloc(900)")[0] == 0
