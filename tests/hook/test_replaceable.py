"""Others replace functions that take and give memory by a jump to their own: UCX, to see what becomes of GPU memory."""

import platform

import pytest
from c_programs import library
from hooked_programs import LIMIT, Node

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="how others replace functions is told of x86_64"
)
JUMP_BYTES = 13  # the longest that is written over a function's begin

REPLACE = """
import ctypes
other = ctypes.CDLL({other!r})
other.calls_counted.restype = ctypes.c_uint64
def replace(name):
    return other.replace(ctypes.cast(getattr(cuda, name), ctypes.c_void_p))
def counted(call):
    before = other.calls_counted()
    result = call()
    return result, other.calls_counted() - before
"""


def run(node: Node, code: str) -> dict[str, object]:
    other = str(library("replaces.c", name="libreplaces.so"))
    said = node.run(REPLACE.format(other=other) + code, **{LIMIT: "100m"})
    assert (said["rc"], said["stderr"]) == (0, "")
    return said


@pytest.mark.parametrize(
    "name",
    [
        "cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch", "cuMemAllocPitch_v2",
        "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFree", "cuMemFree_v2", "cuMemFreeAsync",
        "cuMemMap", "cuMemUnmap",
    ],
)  # fmt: skip
def test_a_function_begins_with_what_can_be_run_elsewhere(node: Node, name: str) -> None:
    """Where one of them cannot be replaced, UCX up to 1.18.0 sees no memory at all."""
    assert run(node, f"say(understood=replace({name!r}))")["understood"] >= JUMP_BYTES


def test_what_is_replaced_works_and_is_limited_as_before(node: Node) -> None:
    said = run(
        node,
        "names = ['cuMemAlloc_v2', 'cuMemFree_v2', 'cuMemAllocAsync', 'cuMemFreeAsync']\n"
        "replaced = [replace(name) >= 13 for name in names]\n"
        "started = start()\n"
        "(result, address), first = counted(lambda: alloc(60))\n"
        "(refused, _), second = counted(lambda: alloc(60, 'cuMemAllocAsync', None))\n"
        "freed, third = counted(lambda: free(address))\n"
        "(again, address), fourth = counted(lambda: alloc(60, 'cuMemAllocAsync', None))\n"
        "given, fifth = counted(lambda: free(address, 'cuMemFreeAsync', None))\n"
        "say(replaced=replaced, results=[started, result, refused, freed, again, given],"
        " counts=[first, second, third, fourth, fifth])",
    )
    assert said["replaced"] == [True] * 4
    assert said["results"] == [0, 0, 2, 0, 0, 0]
    assert said["counts"] == [1] * 5
