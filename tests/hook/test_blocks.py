"""What is noted of each allocation: blocks.c by itself."""

import ctypes
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from built_hook import ROOT
from c_programs import compiled, library

ADDRESS, POOLED = 0, 1
EMPTY = "\n"
SOURCES = [str(ROOT / "hook" / name) for name in ("blocks.c", "brief.c")]


@pytest.fixture(scope="module")
def blocks() -> ctypes.CDLL:
    inside = ctypes.CDLL(str(library(EMPTY, *SOURCES, "-lpthread")))
    inside.block_new.restype = inside.block_take.restype = ctypes.c_void_p
    return inside


def add(blocks: ctypes.CDLL, space: int, key: int) -> int:
    """The block that is now known by the key."""
    block = blocks.block_new(space, 0, ctypes.c_uint64(512))
    blocks.block_add(ctypes.c_void_p(block), ctypes.c_ulonglong(key), ctypes.c_uint64(0))
    assert isinstance(block, int)
    return block


def take(blocks: ctypes.CDLL, space: int, key: int) -> int | None:
    found: int | None = blocks.block_take(space, ctypes.c_ulonglong(key), ctypes.c_uint64(0))
    return found


def test_a_child_has_none_of_its_parents(blocks: ctypes.CDLL) -> None:
    block = add(blocks, ADDRESS, 4096)
    child = os.fork()
    if child == 0:
        os._exit(take(blocks, ADDRESS, 4096) is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert take(blocks, ADDRESS, 4096) == block


def test_a_key_is_known_in_its_own_space_and_once(blocks: ctypes.CDLL) -> None:
    block = add(blocks, ADDRESS, 512)
    assert take(blocks, POOLED, 512) is None
    assert take(blocks, ADDRESS, 512) == block
    assert take(blocks, ADDRESS, 512) is None


def test_what_one_thread_adds_and_another_takes_is_used_again(blocks: ctypes.CDLL) -> None:
    def add_it(key: int) -> int:
        return add(blocks, ADDRESS, key)

    def take_and_free(key: int) -> None:
        blocks.block_free(ctypes.c_void_p(take(blocks, ADDRESS, key)))

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        used = set()
        for key in range(512, 512 * 200, 512):
            used.add(one.submit(add_it, key).result())
            other.submit(take_and_free, key).result()
    assert len(used) == 2  # who frees keeps one for itself


def new_and_free(blocks: ctypes.CDLL) -> int:
    block: int = blocks.block_new(ADDRESS, 0, ctypes.c_uint64(512))
    blocks.block_free(ctypes.c_void_p(block))
    return block


def test_what_a_thread_keeps_is_used_again_once_it_has_ended(blocks: ctypes.CDLL) -> None:
    used = set()
    for _ in range(100):
        with ThreadPoolExecutor(1) as thread:
            used.add(thread.submit(new_and_free, blocks).result())
    assert len(used) < 10  # threads that lie elsewhere use others


@pytest.mark.parametrize("keys", [0, 40], ids=["few keys", "more than threads have room for"])
def test_what_is_used_while_a_thread_ends_is_used_again(keys: int) -> None:
    """And never twice at a time; the program's allocator has no part in it."""
    program = compiled("thread_ends.c", f"-I{ROOT / 'hook'}", *SOURCES, "-lpthread")
    done = subprocess.run([str(program), str(keys)], capture_output=True, text=True, check=True)
    blocks, twice, allocations = map(int, done.stdout.split())
    assert (twice, allocations) == (0, 0)
    assert blocks < 10


def test_a_child_of_fork_may_use_what_its_thread_has_kept(blocks: ctypes.CDLL) -> None:
    kept = new_and_free(blocks)
    child = os.fork()
    if child == 0:
        first = add(blocks, ADDRESS, 4096)
        second = add(blocks, ADDRESS, 8192)
        found = {take(blocks, ADDRESS, 4096), take(blocks, ADDRESS, 8192)}
        os._exit(not (first == kept and second != first and found == {first, second}))
    assert os.waitpid(child, 0)[1] == 0
