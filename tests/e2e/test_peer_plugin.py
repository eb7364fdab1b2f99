"""`build.py bench --peer-plugin`: another device plugin on our stand-ins. The peer here is our own agent."""

import sys
from pathlib import Path

import pytest

from tests.bench.nodes import ROOT, a_node
from tests.bench.plugin_area import (
    DEVICE_PLUGINS,
    Peer,
    PeerNode,
    allocations,
    has_namespaces,
    resident_mib,
)
from tests.bench.rows import BenchError

WORDS = (
    "run --node-name {node} --kubeconfig {kubeconfig} --kubelet-socket {kubelet_socket} "
    "--host-hook-path {root}/host --vgpulock-dir {root}/vgpulock --state-dir {root}/state "
    "--runtime-dir {root}/run --metrics-bind-address 127.0.0.1:{port}"
)


def program(directory: Path, text: str) -> Path:
    path = directory / "plugin"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_peer_registers_and_allocates(tmp_path: Path) -> None:
    ours = program(tmp_path, f'#!/bin/sh\nexec {sys.executable} {ROOT / "agent.py"} "$@"\n')
    with a_node(started=False, kind=PeerNode) as node:
        assert isinstance(node, PeerNode)
        node.peer = Peer(ours, WORDS)
        node.start_agent()
        node.wait("registration", lambda: node.allocatable() > 0, within_s=60)
        node.wait("readiness", node.ready, within_s=60)
        found = allocations(node, 2)
        assert len(found.took_ms) == 2
        assert found.writes == [2, 2]
        assert node.agent is not None
        assert resident_mib(node.agent.pid) > 10


def test_words_may_name_places_and_nothing_else(tmp_path: Path) -> None:
    with a_node(started=False, kind=PeerNode) as node:
        assert isinstance(node, PeerNode)
        node.peer = Peer(program(tmp_path, "#!/bin/sh\n"), "--where {nowhere}")
        with pytest.raises(BenchError, match="nowhere"):
            node.start_agent()


@pytest.mark.skipif(not has_namespaces(), reason="no mount namespaces here")
def test_a_peer_that_knows_one_place_finds_kubelet_there(tmp_path: Path) -> None:
    text = f"#!/bin/sh\nls {DEVICE_PLUGINS} >{tmp_path}/seen\nexec sleep 600\n"
    with a_node(started=False, kind=PeerNode) as node:
        assert isinstance(node, PeerNode)
        node.peer = Peer(program(tmp_path, text))
        node.start_agent()
        seen = tmp_path / "seen"
        node.wait("a look", lambda: seen.exists() and seen.read_text(), within_s=60)
        assert "kubelet.sock" in seen.read_text().split()
