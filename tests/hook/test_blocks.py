"""What is noted of each allocation: blocks.c by itself."""

import ctypes
import os

import pytest
from built_hook import ROOT
from c_programs import library

ADDRESS, POOLED = 0, 1
EMPTY = "\n"


@pytest.fixture(scope="module")
def blocks() -> ctypes.CDLL:
    inside = ctypes.CDLL(str(library(EMPTY, str(ROOT / "hook" / "blocks.c"), "-lpthread")))
    inside.block_new.restype = inside.block_take.restype = ctypes.c_void_p
    return inside


def add(blocks: ctypes.CDLL, space: int, key: int) -> int:
    """The block that is now known by the key."""
    block = blocks.block_new(space, 0, ctypes.c_uint64(512))
    blocks.block_add(ctypes.c_void_p(block), ctypes.c_ulonglong(key))
    assert isinstance(block, int)
    return block


def take(blocks: ctypes.CDLL, space: int, key: int) -> int | None:
    found: int | None = blocks.block_take(space, ctypes.c_ulonglong(key))
    return found


def test_a_child_has_none_of_its_parents(blocks: ctypes.CDLL) -> None:
    block = add(blocks, ADDRESS, 4096)
    child = os.fork()
    if child == 0:
        os._exit(take(blocks, ADDRESS, 4096) is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert take(blocks, ADDRESS, 4096) == block


def test_keys_of_different_spaces_are_not_mixed_up(blocks: ctypes.CDLL) -> None:
    """Also where the table has both at one place: so many are some of those."""
    for key in range(0, 300_000 * 512, 512):
        block = add(blocks, ADDRESS, key)
        assert take(blocks, POOLED, key) is None
        assert take(blocks, ADDRESS, key) == block
        blocks.block_free(ctypes.c_void_p(block))
