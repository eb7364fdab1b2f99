"""What graphs leave, by address: graphs.c and graph_left.c by themselves, their calls one after the other as threads may make them."""

import ctypes
from enum import IntEnum

import pytest
from built_hook import ROOT
from c_programs import library

ALONE = """
#include "charge.h"
#include "devices.h"
#include "graph_launches.h"
#include "real.h"
#include "settings.h"
_Atomic(const void *) real_known[2];
const void *real_search(enum driver driver, bool load) { (void)driver; (void)load; return NULL; }
bool charging(void) { return true; }
int place_of_device(CUdevice device) { return device; }
void graph_memory_known(int place, CUdevice device) { (void)place, (void)device; }
void graph_memory_forget(void) { }

size_t launch_bytes(void) { return sizeof(struct graph_launch); }
uint64_t kept(const struct graph_launch *launch)
{
    uint64_t bytes;
    graph_keeps(launch, 0, &bytes);
    return bytes;
}
"""
BYTES, ADDRESS, ALL = 60 << 20, 0x1000, 60 << 20


class Stage(IntEnum):
    LAUNCHING = 0
    LAUNCHED = 1
    REFUSED = 2
    UNTOUCHED = 3  # refused before anything was done, as for the sake of a capture


class Graphs:
    """One graph that leaves memory, and one that frees it by a node."""

    def __init__(self) -> None:
        hook = ROOT / "hook"
        names = ("depth.c", "graph_left.c", "graphs.c", "table.c")
        sources = [str(hook / name) for name in names]
        self.inside = ctypes.CDLL(str(library(ALONE, f"-I{hook}", *sources, "-lpthread")))
        self.inside.kept.restype = ctypes.c_uint64
        leaving, freeing = ctypes.c_void_p(1), ctypes.c_void_p(2)
        address = ctypes.c_uint64(ADDRESS)
        self.inside.graph_made(leaving)
        self.inside.graph_made(freeing)
        self.inside.graph_allocates(leaving, 0, ctypes.c_uint64(BYTES), address, False)
        self.inside.graph_frees(freeing, address)
        self.leaver, self.freer = self._launch(leaving, 3), self._launch(freeing, 4)

    def _launch(self, graph: ctypes.c_void_p, handle: int) -> ctypes.Array[ctypes.c_char]:
        launch = ctypes.create_string_buffer(self.inside.launch_bytes())
        self.inside.graph_instantiated(ctypes.c_void_p(handle), graph)
        assert self.inside.graph_needs(launch, ctypes.c_void_p(handle))
        return launch

    def leave(self, *stages: Stage) -> None:
        """The launch of what leaves it."""
        for stage in stages or (Stage.LAUNCHING, Stage.LAUNCHED):
            self.inside.graph_leaves(self.leaver, stage)

    def node(self, stage: Stage) -> None:
        """The launch of what frees it."""
        self.inside.graph_leaves(self.freer, stage)

    def freeing(self) -> None:
        """Before the driver is asked."""
        self.inside.graph_freeing(ctypes.c_uint64(ADDRESS))

    def freed(self, yes: bool) -> None:
        """Its answer."""
        self.inside.graph_freed(None, ctypes.c_uint64(ADDRESS), yes)

    @property
    def kept(self) -> int:
        return int(self.inside.kept(self.leaver))


@pytest.fixture
def graphs() -> Graphs:
    made = Graphs()
    made.leave()
    assert made.kept == ALL
    return made


def test_who_frees_it_for_the_second_time_does_not_put_it_back(graphs: Graphs) -> None:
    """Two threads at once: the first takes note first, and asks the driver last."""
    graphs.freeing()
    graphs.freeing()
    graphs.freed(True)
    assert graphs.kept == 0
    graphs.freed(False)
    assert graphs.kept == 0


@pytest.mark.parametrize("first", [True, False])
def test_what_nobody_freed_is_there(graphs: Graphs, first: bool) -> None:
    graphs.freeing()
    graphs.freeing()
    graphs.freed(first)
    assert graphs.kept == 0
    graphs.freed(False)
    assert graphs.kept == (0 if first else ALL)


def test_what_is_left_while_it_is_freed_does_not_count_before_that_is_over(graphs: Graphs) -> None:
    """The driver may have freed what it left, and have given it to others."""
    graphs.freeing()
    graphs.leave()
    assert graphs.kept == 0
    graphs.freed(True)
    assert graphs.kept == 0
    graphs.leave()
    assert graphs.kept == ALL


def test_nor_while_a_graph_that_frees_it_is_launched(graphs: Graphs) -> None:
    graphs.node(Stage.LAUNCHING)
    graphs.leave()
    assert graphs.kept == 0
    graphs.node(Stage.LAUNCHED)
    assert graphs.kept == 0


def test_what_is_left_after_all_that_freed_it_had_begun_and_none_did_counts(graphs: Graphs) -> None:
    graphs.freeing()
    graphs.freed(True)
    graphs.freeing()
    graphs.leave()
    graphs.freed(False)
    assert graphs.kept == ALL


def test_after_a_refused_launch_nobody_knows(graphs: Graphs) -> None:
    graphs.freeing()
    graphs.leave(Stage.LAUNCHING, Stage.REFUSED)
    graphs.freed(False)
    assert graphs.kept == 0


def test_what_was_there_is_there_where_the_driver_touched_nothing(graphs: Graphs) -> None:
    graphs.leave(Stage.LAUNCHING, Stage.UNTOUCHED)
    assert graphs.kept == ALL
    graphs.node(Stage.LAUNCHING)
    assert graphs.kept == 0
    graphs.node(Stage.UNTOUCHED)
    assert graphs.kept == ALL


def test_what_was_not_left_yet_is_not_there_then() -> None:
    graphs = Graphs()
    graphs.leave(Stage.LAUNCHING, Stage.LAUNCHING, Stage.UNTOUCHED)
    assert graphs.kept == 0
    graphs.leave(Stage.UNTOUCHED)
    assert graphs.kept == 0


def test_of_two_launches_at_once_one_that_was_made_leaves_it() -> None:
    graphs = Graphs()
    graphs.leave(Stage.LAUNCHING, Stage.LAUNCHING, Stage.LAUNCHED, Stage.UNTOUCHED)
    assert graphs.kept == ALL
