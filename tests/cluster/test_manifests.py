"""A real API server takes the manifests, and would refuse broken ones: dry runs, nothing is made.

The dry run is a server-side apply, which also fails for fields that the server does not know.
"""

import copy
from pathlib import Path

import pytest
from cluster.conftest import REAL_NODES
from kube_api import ApiFailure, KubeApi
from manifests import CHOICES, Manifest, combined, name_of, only, plain
from peers.debian_archive import PeersUnavailable

PATHS = {
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps/{name}",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts/{name}",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}",
}
APPLY = "application/apply-patch+yaml"
DRY = {"dryRun": "All", "fieldManager": "vgpu-agent-test", "force": "true"}


@pytest.fixture(params=REAL_NODES)
def api(request: pytest.FixtureRequest) -> KubeApi:
    """The API server of a real node, as its administrator."""
    if request.param == "given":
        environ = request.getfixturevalue("given_environ")
        return KubeApi.from_kubeconfig(Path(environ["VGPU_TEST_KUBECONFIG"]))
    admin: KubeApi = request.getfixturevalue("peer_node").plane.admin
    return admin


ROLLING = "io.k8s.api.apps.v1.RollingUpdateDaemonSet"


@pytest.fixture
def knows_surge(api: KubeApi) -> bool:
    """Whether it is of 1.22 or newer, as components/surge needs.

    By its own words: those that are built for the tests have no version.
    """
    known = api.get("/openapi/v2")["definitions"][ROLLING]["properties"]
    return "maxSurge" in known


def try_out(api: KubeApi, manifest: Manifest) -> Manifest:
    """Apply it without effect; ApiFailure says what the server has against it."""
    path = PATHS[manifest["kind"]].format(**manifest["metadata"])
    return api.request("PATCH", path, manifest, content_type=APPLY, query=DRY)


@pytest.mark.timeout(600)  # kustomize is compiled once
@pytest.mark.parametrize("choice", CHOICES, ids=name_of)
def test_it_takes_every_manifest(
    api: KubeApi, knows_surge: bool, choice: tuple[Path, tuple[Path, ...]], tmp_path: Path
) -> None:
    try:
        manifests = combined(choice, tmp_path)
    except PeersUnavailable as error:
        pytest.skip(str(error))
    for manifest in manifests:
        rolling = manifest["spec"]["updateStrategy"]["rollingUpdate"] if is_set(manifest) else {}
        if "maxSurge" in rolling and not knows_surge:
            with pytest.raises(ApiFailure, match="maxSurge: field not declared in schema"):
                try_out(api, manifest)
        else:
            assert try_out(api, manifest)["metadata"]["name"] == manifest["metadata"]["name"]


def is_set(manifest: Manifest) -> bool:
    return bool(manifest["kind"] == "DaemonSet")


def test_it_takes_them_without_kustomize(api: KubeApi) -> None:
    before = names_of_daemonsets(api)
    for manifest in plain():
        assert try_out(api, manifest)["metadata"]["name"] == "vgpu-agent"
    assert names_of_daemonsets(api) == before, "it was without effect"


def names_of_daemonsets(api: KubeApi) -> set[str]:
    found = api.get("/apis/apps/v1/namespaces/kube-system/daemonsets")["items"]
    return {item["metadata"]["name"] for item in found}


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        pytest.param(
            {"terminationGracePeriodSecond": 15},
            "field not declared in schema",
            id="misspelt field",
        ),
        pytest.param({"hostPID": "yes"}, "hostPID", id="wrong type"),
        pytest.param({"volumes": []}, "volumeMounts[0].name: Not found", id="mounts of nothing"),
        pytest.param({"priorityClassName": "No!"}, "priorityClassName", id="a name that is none"),
    ],
)
def test_it_refuses_a_broken_one(api: KubeApi, change: Manifest, answer: str) -> None:
    manifest = copy.deepcopy(only("DaemonSet", plain()))
    manifest["spec"]["template"]["spec"] |= change
    with pytest.raises(ApiFailure) as caught:
        try_out(api, manifest)
    assert answer in str(caught.value)
