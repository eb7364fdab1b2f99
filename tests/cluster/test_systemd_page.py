"""Every kubectl line of docs/install/systemd.md is typed, and the kubeconfig that comes of it is used.

On our own API server, which has no controllers: the token controller is played by the test.
"""

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from cluster.test_install_page import ROOT, kubectl_program
from install_page import PAGES, lines
from peers.build_peers import available, default_cache
from peers.container_tools import PeersUnavailable
from peers.node import PeerNode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_page_makes_a_kubeconfig_with_which_the_agent_may_see_its_node(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if os.environ.get("VGPU_TEST_KUBECONFIG"):
        pytest.skip("it would make a token that does not end in somebody's cluster")
    node: PeerNode = request.getfixturevalue("peer_node")
    peers = available(default_cache())
    assert peers is not None, "the node runs"
    try:
        program = kubectl_program()
    except PeersUnavailable as error:
        pytest.skip(str(error))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl").symlink_to(program)
    (tmp_path / "packaging").symlink_to(ROOT / "packaging")
    environ = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "KUBECONFIG": str(node.plane.kubeconfig("admin")),
        "SERVER": node.plane.url,
        "HOME": str(tmp_path),
    }

    def typed(line: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    def play_the_token_controller() -> None:
        certificate = base64.b64encode(peers.certificate.read_bytes()).decode()
        token = base64.b64encode(b"agent-token").decode()
        data = json.dumps({"data": {"ca.crt": certificate, "token": token}})
        typed(f"kubectl -n kube-system patch secret vgpu-agent-token --patch '{data}'")

    page = [line for line in lines(PAGES / "systemd.md") if line.startswith("kubectl")]
    try:
        for number, line in enumerate(page):
            typed(line)
            if number == 0:
                play_the_token_controller()
    finally:
        typed("kubectl -n kube-system delete secret vgpu-agent-token --ignore-not-found")
        typed("kubectl delete --ignore-not-found -f packaging/daemonset/base/rbac.yaml")
        node.plane.grant_agent()  # to the user that the token means here
    shown = typed(f"kubectl --kubeconfig kubeconfig get node {node.name} --output name")
    assert shown == f"node/{node.name}\n"
