"""A node whose containers really run, with the simulated driver in their image."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from built_hook import built, sim_libraries
from peers import container_node
from peers.build_peers import available, default_cache
from peers.container_node import ContainerNode, running_container_node, scratch
from peers.container_tools import PeersUnavailable, container_tools
from peers.runc import place
from tenant_rootfs import DRIVER, libc_directory, make_rootfs


@contextmanager
def tenant_node() -> Iterator[ContainerNode]:
    """Start it; skip where that cannot be."""
    peers = available(default_cache())
    if peers is None or (reason := container_node.missing()):
        pytest.skip(reason if peers else "the peers are not built: build.py cluster-peers")
    built()
    with ExitStack() as stack:
        try:
            rootfs = make_rootfs(stack.enter_context(scratch()), container_tools())
            for library in DRIVER:
                place(rootfs, sim_libraries() / library, str(libc_directory() / library))
            node = stack.enter_context(running_container_node(peers, rootfs))
        except PeersUnavailable as error:
            pytest.skip(str(error))
        yield node
