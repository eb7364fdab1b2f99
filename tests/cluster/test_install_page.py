"""Every kubectl command of docs/install/kubernetes.md, of README.md and of docs/modes is run.

On our own API server for real, where nothing but an API server is needed: there are no controllers,
so no agent is rolled out, which is told by the test in their place, and nothing is collected. On a cluster that is given, whatever would
change something is a dry run of the server, because it may have a HAMi that somebody uses.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.conftest import REAL_NODES
from install_page import commands, lines
from peers.container_tools import PeersUnavailable, unpacked
from peers.kustomize_tool import kustomize
from typed_commands import commands_for

pytestmark = pytest.mark.timeout(600)  # kustomize is compiled and kubectl fetched, once

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
HERE = "tests/cluster/test_install_page.py"
CHANGES = {"label", "apply", "delete", "annotate"}
NEEDS_CONTROLLERS = {"rollout"}
Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


def kubectl_program() -> str:
    """That of the machine, else Debian's. Raises PeersUnavailable."""
    if found := shutil.which("kubectl"):
        return found
    return str(unpacked("kubectl", ("kubernetes-client",), 1) / "usr" / "bin" / "kubectl")


@pytest.fixture(params=REAL_NODES)
def cluster(request: pytest.FixtureRequest) -> tuple[str, Path, str]:
    """Its kind, a kubeconfig of its administrator, and a node."""
    if request.param == "given":
        environ = request.getfixturevalue("given_environ")
        return "given", Path(environ["VGPU_TEST_KUBECONFIG"]), environ.get("VGPU_TEST_NODE", "")
    node = request.getfixturevalue("peer_node")
    return "ours", node.plane.kubeconfig("admin"), node.name


@pytest.fixture
def kubectl(cluster: tuple[str, Path, str]) -> Kubectl:
    _, kubeconfig, _ = cluster
    try:
        program, builder = kubectl_program(), kustomize()
    except PeersUnavailable as error:
        pytest.skip(str(error))

    def run(*words: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        if "-k" in words:  # kubectl before 1.21 carries a kustomize without components
            at = words.index("-k")
            built = subprocess.run(
                [builder, "build", ROOT / words[at + 1]], capture_output=True, text=True, check=True
            )
            words, stdin = (*words[:at], "-f", "-", *words[at + 2 :]), built.stdout
        return subprocess.run(
            [program, "--kubeconfig", str(kubeconfig), *words],
            input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        )  # fmt: skip

    return run


@pytest.fixture
def node_name(
    request: pytest.FixtureRequest, cluster: tuple[str, Path, str], kubectl: Kubectl
) -> Iterator[str]:
    """The node; as it was, after the test, and the tests' own agent with its rights."""
    kind, _, name = cluster
    if not name:
        name = kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}").stdout
    yield name
    if kind == "ours":
        kubectl("label", "node", name, "gpu-")
        kubectl("delete", "--wait=false", "-k", "packaging/daemonset/overlays/hami")
        request.getfixturevalue("peer_node").plane.grant_agent()


def test_every_command_of_the_page_works(
    cluster: tuple[str, Path, str], kubectl: Kubectl, node_name: str
) -> None:
    kind, _, _ = cluster
    page = [words[1:] for words in commands("kubectl")]
    assert {word for words in page for word in words} >= {*CHANGES, *NEEDS_CONTROLLERS}
    for words in page:
        typed = [node_name if word == "$NODE" else word for word in words]
        if NEEDS_CONTROLLERS & set(typed):
            if kind == "given":
                continue  # nothing was rolled out: the commands before were dry runs
            play_the_daemonset_controller(kubectl)
        if kind == "given" and CHANGES & set(typed):
            typed.append("--dry-run=server")
        if kind == "ours" and "--cascade=foreground" in typed:
            typed[typed.index("--cascade=foreground")] = "--wait=false"
        done = kubectl(*typed)
        if kind == "given" and typed[0] == "delete" and "NotFound" in done.stderr:
            continue  # a dry run has installed nothing
        assert done.returncode == 0, f"{' '.join(typed)}: {done.stderr}"


def play_the_daemonset_controller(kubectl: Kubectl) -> None:
    """Say that every node has its pod, of which there is none to be had here."""
    where = "/apis/apps/v1/namespaces/kube-system/daemonsets/vgpu-agent"
    found = json.loads(kubectl("get", "--raw", where).stdout)
    found["status"] = {
        "observedGeneration": found["metadata"]["generation"],
        "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1,
        "numberAvailable": 1, "numberReady": 1, "numberMisscheduled": 0,
    }  # fmt: skip
    told = kubectl("replace", "--raw", f"{where}/status", "-f", "-", stdin=json.dumps(found))
    assert told.returncode == 0, told.stderr


def test_the_commands_of_the_readme_work(
    cluster: tuple[str, Path, str], kubectl: Kubectl, node_name: str
) -> None:
    kind, _, _ = cluster
    typed = [line for line in lines(README) if line.startswith("kubectl")]
    *changes, token = (shlex.split(line.partition(" > ")[0], comments=True)[1:] for line in typed)
    assert len(changes) == 3
    dry = ["--dry-run=server"] if kind == "given" else []
    for words in changes:
        done = kubectl(*(node_name if word == "<node>" else word for word in words), *dry)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    if kind == "given":
        return  # a token of somebody's cluster is not for a test
    asked = kubectl(*token)
    if "unknown flag" in asked.stderr or "unknown command" in asked.stderr:  # before kubectl 1.24
        assert token == [
            *("-n", "kube-system", "create", "token", "vgpu-agent", "--duration", "24h")
        ]
        asked = kubectl(
            *("create", "-f", "-", "--raw"),
            "/api/v1/namespaces/kube-system/serviceaccounts/vgpu-agent/token",
            stdin=json.dumps({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {"expirationSeconds": 24 * 3600},
            }),
        )  # fmt: skip
        assert json.loads(asked.stdout)["status"]["token"].count(".") == 2, asked.stderr
    assert asked.returncode == 0, asked.stderr


def test_the_overlays_of_the_modes_are_applied(kubectl: Kubectl) -> None:
    """As a dry run of the server: one node has one mode."""
    typed = commands_for(f"{HERE}::test_the_overlays_of_the_modes_are_applied")
    assert typed
    for line in (line for chosen in typed.values() for line in chosen):
        done = kubectl(*shlex.split(line)[1:], "--dry-run=server")
        assert done.returncode == 0, f"{line}: {done.stderr}"
