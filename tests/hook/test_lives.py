"""Processes that fork, exec, race, are interrupted or end, under a limit of 100 MiB."""

import fcntl
import subprocess

import pytest
from built_hook import ROOT, built
from c_programs import compiled, library
from hooked_programs import LIMIT, Node
from process_lives import lives
from region_files import RegionFile


def live(node: Node, life: str, *flags: str, hook: bool = True) -> list[str]:
    """What a life of lives.c prints."""
    program = compiled("lives.c", *flags, "-ldl", "-lpthread")
    more = {LIMIT: "100m"} if hook else {"LD_PRELOAD": ""}
    done = node.run_program([str(program), life], **more)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@lives()
def test_the_limit_holds_in_every_life(node: Node, life: str, said: list[str]) -> None:
    assert live(node, life) == said


@pytest.mark.parametrize("life", ["end", "end of who came first"])
def test_who_uses_cuda_to_its_very_end_is_not_shown_after_it(node: Node, life: str) -> None:
    live(node, life)
    assert RegionFile(node.cache).shown() == {}


def test_a_constructor_may_start_cuda(node: Node) -> None:
    assert live(node, "", "-DEARLY") == ["constructor 0 2"]


@pytest.mark.parametrize("life", ["fork after", "clone after"])
def test_a_child_of_a_process_with_cuda_gets_the_drivers_own_answer(node: Node, life: str) -> None:
    """CUDA does not survive a fork; whatever the driver says, we neither add to it nor hang."""
    assert live(node, life) == live(node, life, hook=False)


def test_a_cancelled_thread_keeps_nothing_from_the_others(node: Node) -> None:
    """It ends after our call, not in it: it waits there for a file that somebody has locked.

    The driver is one that does nothing: in the simulated one a thread may end.
    """
    driver = library("driver.c", "-Wl,-soname,libcuda.so.1", "-ldl", name="libcuda.so.1")
    env = node.environment(**{LIMIT: "100m", "LD_LIBRARY_PATH": str(driver.parent)})
    words = [str(compiled("lives.c", "-ldl", "-lpthread")), "cancelled"]
    with node.cache.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        program = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert program.stdout.readline() == "cancelled 0 0\n"
    try:
        assert program.communicate(timeout=20)[0] == "another 0 0\n"
    finally:
        program.kill()
        program.wait()


def test_a_thread_that_is_cancelled_as_it_fails_keeps_nothing_from_the_others(node: Node) -> None:
    """It ends behind the line that says why, which is written where others wait."""
    driver = library("driver.c", "-Wl,-soname,libcuda.so.1", "-ldl", name="libcuda.so.1")
    node.cache.mkdir()
    env = {LIMIT: "100m", "LIBCUDA_LOG_LEVEL": "1", "LD_LIBRARY_PATH": str(driver.parent)}
    words = [str(compiled("lives.c", "-ldl", "-lpthread")), "cancelled as it fails"]
    done = subprocess.run(
        words, env=node.environment(**env), capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "another 304 0\n"
    assert done.stderr.count("cannot count memory in") == 2


def test_a_thread_that_is_cancelled_as_it_launches_keeps_nothing_of_any_device(node: Node) -> None:
    """It has asked the first device for memory, and waits for the second: it ends behind our answer."""
    abi = f"-I{ROOT / 'hook'}"
    driver = library(
        "cancelled_launch.c", "-DDRIVER", abi, "-Wl,-soname,libcuda.so.1", name="libcuda.so.1"
    )
    words = [str(compiled("cancelled_launch.c", abi, "-ldl", "-lpthread"))]
    done = node.run_program(words, **{LIMIT: "100m", "LD_LIBRARY_PATH": str(driver.parent)})
    assert (done.returncode, done.stdout) == (0, "cancelled 0\n")


def test_a_pool_ends_though_a_thread_was_cancelled_that_trimmed_it(node: Node) -> None:
    """Who destroys it waits for that one, which is cancelled only afterwards."""
    words = [str(compiled("cancelled_trim.c", f"-I{ROOT / 'hook'}", "-ldl", "-lpthread"))]
    before = node.sim.config_path.read_text()
    program = subprocess.Popen(
        words, env=node.environment(**{LIMIT: "1000m"}), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        assert program.stdout.readline() == "kept\n"
        node.sim.config_path.write_text(f"{before}hold call=cuMemPoolTrimTo\n")
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "cancelled\n"
        node.sim.config_path.write_text(before)
        assert program.communicate("\n", timeout=20)[0] == "destroyed 0\n"
    finally:
        program.kill()
        program.wait()


def test_who_opened_and_closed_it_forks_and_ends_as_ever(node: Node) -> None:
    program = compiled("lives.c", "-ldl", "-lpthread")
    words = [str(program), "closed", str(built() / "libvgpu.so")]
    done = node.run_program(words, **{LIMIT: "100m", "LD_PRELOAD": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("opened 0 0\nchild 0 ")
