"""Whose certificates does the agent trust? Those that kubectl trusts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Identity, make_bare_identity, make_identity
from strict_python import be_strict

from agent.adapters import kube_config
from agent.adapters.cluster import KubeCluster
from agent.adapters.kube_transport import KubeTransport
from agent.errors import ClusterUnavailable
from agent.sim.apiserver import ApiServer


def node_of(server: ApiServer, folder: Path, trusted: Identity) -> str:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    server.write_service_account(folder, "token", trusted.certificate)
    transport = KubeTransport(
        load=lambda: kube_config.load_configuration(
            None, service_account_dir=folder, environ=environ
        )
    )
    return KubeCluster(transport, node_name="n1").get_node().name


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make_bare_identity, id="an authority without key usage"),
        pytest.param(make_identity, id="one with all that RFC 5280 asks for"),
    ],
)
def test_an_authority_needs_no_more_than_kubectl_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Identity]
) -> None:
    be_strict(monkeypatch)
    identity = make("test")
    with ApiServer(tokens=["token"], tls=identity.server_context(tmp_path)) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        assert node_of(server, tmp_path / "account", identity) == "n1"
        with pytest.raises(ClusterUnavailable, match="certificate is not trusted"):
            node_of(server, tmp_path / "other", make("other"))
