"""The nodes that the cases run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.build_peers import available, default_cache
from peers.node import PeerNode, missing, running_node

KNOBS = [
    Path("/proc/sys", name)
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
]


@pytest.fixture(scope="session")
def knobs_before() -> dict[Path, str]:
    """Kernel settings that a kubelet likes to change, as they were before there was one."""
    return {knob: knob.read_text() for knob in KNOBS if knob.exists()}


@pytest.fixture(scope="session")
def peer_node(knobs_before: dict[Path, str]) -> Iterator[PeerNode]:
    """A real kubelet, API server and etcd; one for all cases, because it takes seconds to start."""
    reason, peers = missing(), available(default_cache())
    if reason or peers is None:
        pytest.skip(reason)
    with running_node(peers) as node:
        yield node
