"""How is a real API server run for a test, and who may do what on it?

etcd and kube-apiserver as ordinary processes on loopback, with a fresh database, static tokens and
RBAC. No controllers and no scheduler: nothing writes to the objects but the tests, the kubelet and
the agent. The admission plugin ServiceAccount is off, because nobody makes the default accounts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from kube_api import KubeApi, kubeconfig_text

from .build_peers import Peers
from .processes import Process, free_port

SECURE_ONLY = 24  # minor from which there is no other port
RBAC = Path(__file__).resolve().parents[2] / "packaging" / "daemonset" / "base" / "rbac.yaml"


def agent_rules() -> list[dict[str, list[str]]]:
    """The rules that are shipped for the agent; a request outside them fails the tests with 403."""
    documents = yaml.safe_load_all(RBAC.read_text())
    return next(found["rules"] for found in documents if found["kind"] == "ClusterRole")


class ControlPlane:
    """One etcd and one API server; `stop` and `start` keep the port and the data.

    Args:
        peers: the binaries.
        state: a directory of its own for data, logs and kubeconfigs.
        node: the one node's name; its kubelet has the token of `system:node:<node>`.
    """

    def __init__(self, peers: Peers, *, state: Path, node: str) -> None:
        self._peers = peers
        self._state = state
        self._etcd_port, self._etcd_peer_port, self.port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._tokens = {
            "admin": ("test-admin", "system:masters"),
            "kubelet": (f"system:node:{node}", "system:nodes"),
            "agent": ("vgpu-agent", ""),
        }
        rows = [f"{who}-token,{user},{who},{group}" for who, (user, group) in self._tokens.items()]
        (state / "tokens.csv").write_text("\n".join(rows) + "\n")
        for who in self._tokens:
            self.kubeconfig(who).write_text(
                kubeconfig_text(self.url, token=f"{who}-token", certificate=peers.certificate)
            )
        self._etcd = Process(self._etcd_command(), log=state / "etcd.log", environ={})
        self._apiserver = Process(self._apiserver_command(), log=state / "apiserver.log")
        self.admin = KubeApi.from_kubeconfig(self.kubeconfig("admin"))

    def kubeconfig(self, who: str) -> Path:
        """The kubeconfig of `admin`, `kubelet` or `agent`."""
        return self._state / f"{who}.kubeconfig"

    def start(self) -> None:
        """Start both and wait until requests are served; the first time, grant the agent's role."""
        self._etcd.start()
        self.start_apiserver()
        self.grant_agent()

    def grant_agent(self) -> None:
        """Make the agent's role and give it to the user that its kubeconfig names."""
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "vgpu-agent"}}
        to = {"apiGroup": "rbac.authorization.k8s.io"}
        base = "/apis/rbac.authorization.k8s.io/v1"
        self._create(
            f"{base}/clusterroles", {**role, "kind": "ClusterRole", "rules": agent_rules()}
        )
        self._create(
            f"{base}/clusterrolebindings",
            {
                **role,
                "kind": "ClusterRoleBinding",
                "roleRef": {**to, "kind": "ClusterRole", "name": "vgpu-agent"},
                "subjects": [{**to, "kind": "User", "name": "vgpu-agent"}],
            },
        )

    def start_apiserver(self) -> None:
        """Start the API server (again)."""
        self._apiserver.start()
        self._apiserver.wait_until(self.admin.is_ready, within_s=60, what="the API server is ready")

    def has_ready_node(self) -> bool:
        """Whether a kubelet has reported its node ready."""
        nodes = self.admin.get("/api/v1/nodes")["items"]
        conditions = [c for n in nodes for c in n.get("status", {}).get("conditions", [])]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def stop_apiserver(self) -> None:
        """Crash the API server; etcd and its data stay."""
        self._apiserver.kill()

    def stop(self) -> None:
        """End both processes."""
        self._apiserver.kill()  # its graceful end waits a minute for watchers
        self._etcd.stop()

    def _create(self, path: str, body: Mapping[str, Any]) -> None:
        self.admin.request("POST", path, body)

    def _etcd_command(self) -> list[str]:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._etcd_peer_port}"
        return [
            str(self._peers.etcd),
            f"--data-dir={self._state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ]

    def _apiserver_command(self) -> list[str]:
        peers = self._peers
        return [
            str(peers.kube_apiserver),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            *(["--insecure-port=0"] if peers.minor < SECURE_ONLY else []),
            f"--tls-cert-file={peers.certificate}",
            f"--tls-private-key-file={peers.key}",
            f"--token-auth-file={self._state / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={peers.key}",
            f"--service-account-signing-key-file={peers.key}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--endpoint-reconciler-type=none",  # the others refuse a loopback address
            "--allow-privileged=true",
            "--profiling=false",
        ]
