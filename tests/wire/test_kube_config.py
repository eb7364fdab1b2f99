"""Credentials: where they come from, how they are renewed, and what is imported for them."""

import base64
import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Identity, make_identity
from kube_stage import LOCK, Reader, StoppableLife, annotations, soon
from waiting import eventually

from agent.adapters import (
    authorities,
    embedded_files,
    exec_plugin,
    kube_config,
    kube_transport,
)
from agent.adapters.cluster import KubeCluster
from agent.adapters.embedded_files import EmbeddedFiles
from agent.adapters.kube_transport import KubeTransport
from agent.errors import ClusterDenied, ClusterUnavailable, ConfigError
from agent.sim.apiserver import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        server.objects.create("nodes", {"metadata": {"name": "n2"}})
        yield server


@pytest.fixture
def stop() -> Iterator[StoppableLife]:
    """A lifeline that is ended after the test, so that no reader outlives it."""
    life = StoppableLife()
    yield life
    life.end()


# --- credentials ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def identity() -> Identity:
    return make_identity()


def in_cluster(server: ApiServer, folder: Path) -> KubeTransport:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    return KubeTransport(
        load=lambda: kube_config.load_configuration(
            None, service_account_dir=folder, environ=environ
        )
    )


@pytest.fixture
def quick_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_transport, "RELOAD_EVERY_S", 0.0)


@pytest.mark.usefixtures("quick_reload")
def test_a_service_account_whose_token_and_authority_rotate(
    tmp_path: Path, identity: Identity
) -> None:
    folder = tmp_path / "account"
    with ApiServer(tokens=["first"], tls=identity.server_context(tmp_path)) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        server.write_service_account(folder, "first\n", identity.certificate)
        cluster = KubeCluster(in_cluster(server, folder), node_name="n1")
        assert cluster.get_node().name == "n1"

        server.accept_tokens("second")
        with pytest.raises(ClusterDenied, match="401"):
            cluster.get_node()
        (folder / "token").write_text("second")
        assert cluster.get_node().name == "n1"

        renewed = make_identity("renewed")
        server.stop()
        server._tls = renewed.server_context(tmp_path)
        server.start()
        with pytest.raises(ClusterUnavailable, match="certificate is not trusted"):
            cluster.get_node()
        (folder / "ca.crt").write_text(renewed.certificate)
        assert cluster.get_node().name == "n1"


@pytest.mark.usefixtures("quick_reload")
def test_a_watch_too_finds_the_new_token(
    tmp_path: Path, identity: Identity, stop: StoppableLife
) -> None:
    folder = tmp_path / "account"
    with ApiServer(tokens=["first"], tls=identity.server_context(tmp_path)) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        server.write_service_account(folder, "first", identity.certificate)
        cluster = KubeCluster(in_cluster(server, folder), node_name="n1")
        cluster.connect()
        server.accept_tokens("second")
        (folder / "token").write_text("second")
        reader = Reader(cluster.watch_node("", stop=stop))
        eventually(lambda: reader.changes)
        assert [r.code for r in server.requests(verb="watch")] == [401, 200]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        pytest.param(lambda f: (f / "token").unlink(), "token file does not exist", id="no token"),
        pytest.param(lambda f: (f / "token").write_text(""), "empty", id="empty token"),
        pytest.param(lambda f: (f / "ca.crt").unlink(), "does not exist", id="no authority"),
    ],
)
def test_a_service_account_that_cannot_be_used(
    tmp_path: Path, spoil: Callable[[Path], Any], sentence: str
) -> None:
    server = ApiServer(port=1)
    folder = server.write_service_account(tmp_path / "account", "t", "x")
    spoil(folder)
    with pytest.raises(ConfigError, match=sentence):
        KubeCluster(in_cluster(server, folder), node_name="n1").connect()


def test_a_client_package_that_sends_no_token_is_named(
    tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubernetes 36.0.0: each request would be refused as one of nobody's."""
    server = ApiServer(port=1)
    folder = server.write_service_account(tmp_path / "account", "t", identity.certificate)
    monkeypatch.setattr(kube_config, "authorization", lambda _configuration: "")
    with pytest.raises(ConfigError, match="sends no Authorization header"):
        KubeCluster(in_cluster(server, folder), node_name="n1").connect()


def test_outside_a_cluster_without_a_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set --kubeconfig"):
        kube_config.load_configuration(None, service_account_dir=tmp_path, environ={})


def test_a_token_no_header_may_carry_is_not_shown(tmp_path: Path, identity: Identity) -> None:
    server = ApiServer(port=1)
    folder = server.write_service_account(
        tmp_path / "account", "secret\nsecond line", identity.certificate
    )
    with pytest.raises(ClusterDenied) as caught:
        KubeCluster(in_cluster(server, folder), node_name="n1").get_node()
    assert "secret" not in str(caught.value)


def write_kubeconfig(path: Path, server: ApiServer, user: dict[str, Any], ca_pem: str) -> Path:
    server.write_kubeconfig(path)
    content = json.loads(path.read_text())
    content["users"][0]["user"] = user
    (path.parent / "authority.crt").write_text(ca_pem)
    content["clusters"][0]["cluster"]["certificate-authority"] = "authority.crt"
    path.write_text(json.dumps(content))
    return path


PLUGIN = """#!{python}
import json, pathlib
token = pathlib.Path(__file__).with_name("plugin-token").read_text()
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                  "status": {{"token": token}}}}))
"""


@pytest.mark.usefixtures("quick_reload")
@pytest.mark.parametrize("kind", ["token", "tokenFile", "certificate", "exec"])
def test_kubeconfigs(tmp_path: Path, identity: Identity, kind: str) -> None:
    client = make_identity("client")
    certificate, key = client.write(tmp_path, "client")
    plugin = tmp_path / "plugin"
    plugin.write_text(PLUGIN.format(python=sys.executable))
    plugin.chmod(0o755)
    for name in ("plugin-token", "token-file"):
        (tmp_path / name).write_text("first")
    users: dict[str, dict[str, Any]] = {
        "token": {"token": "first"},
        "tokenFile": {"tokenFile": "token-file"},
        "certificate": {"client-certificate": str(certificate), "client-key": str(key)},
        "exec": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}},
    }
    context = identity.server_context(tmp_path, trusted_clients=client.certificate)
    with ApiServer(tokens=["first"], tls=context) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = write_kubeconfig(tmp_path / "kubeconfig", server, users[kind], identity.certificate)
        cluster = KubeCluster(KubeTransport(path), node_name="n1")
        assert cluster.get_node().name == "n1"
        server.accept_tokens("second")
        for name in ("plugin-token", "token-file"):
            (tmp_path / name).write_text("second")
        if kind == "token":
            with pytest.raises(ClusterDenied):
                cluster.get_node()
            write_kubeconfig(path, server, {"token": "second"}, identity.certificate)
        assert cluster.get_node().name == "n1"


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        pytest.param({}, {"token": "old", "tokenFile": "token-file"}, id="both"),
        pytest.param({}, {"token": "", "tokenFile": "token-file"}, id="an empty token"),
        pytest.param({}, {"token": "new", "tokenFile": ""}, id="an empty name of a file"),
        pytest.param({"certificate-authority-data": ""}, {"token": "new"}, id="no authority in it"),
        pytest.param(
            {}, {"token": "new", "client-certificate-data": "", "client-key-data": ""}, id="no key"
        ),
    ],
)
def test_a_file_or_what_stands_in_its_place_is_chosen_as_by_kubectl(
    tmp_path: Path, identity: Identity, cluster: dict[str, str], user: dict[str, str]
) -> None:
    """Each was tried with kubectl 1.33. One that is made of a pod's login has both."""
    (tmp_path / "token-file").write_text("new")
    with ApiServer(tokens=["new"], tls=identity.server_context(tmp_path)) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = write_kubeconfig(tmp_path / "kubeconfig", server, user, identity.certificate)
        content = json.loads(path.read_text())
        content["clusters"][0]["cluster"] |= cluster
        path.write_text(json.dumps(content))
        assert KubeCluster(KubeTransport(path), node_name="n1").get_node().name == "n1"


@pytest.mark.parametrize("variable", ["", "SSL_CERT_FILE"])
def test_a_kubeconfig_without_an_authority_trusts_those_of_the_host(
    tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As kubectl does; OpenSSL looks in one place, which not every distribution has."""
    bundle, other = tmp_path / "ca-bundle.crt", tmp_path / "other.crt"
    bundle.write_text(identity.certificate)
    other.write_text(make_identity("somebody else").certificate)
    for name in authorities.SAID_OTHERWISE:
        monkeypatch.delenv(name, raising=False)
    listed = bundle
    if variable:
        monkeypatch.setenv(variable, str(bundle))
        listed = other
    monkeypatch.setattr(authorities, "BUNDLES", (str(tmp_path / "none"), str(listed)))
    with ApiServer(tokens=["first"], tls=identity.server_context(tmp_path)) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = write_kubeconfig(tmp_path / "kubeconfig", server, {"token": "first"}, "")
        content = json.loads(path.read_text())
        del content["clusters"][0]["cluster"]["certificate-authority"]
        path.write_text(json.dumps(content))
        assert KubeCluster(KubeTransport(path), node_name="n1").get_node().name == "n1"


def embedding(path: Path, server: ApiServer, ca_pem: str, client: Identity) -> Path:
    """A kubeconfig that holds everything itself, as `--embed-certs` and kubeadm make it."""
    user = {"client-certificate-data": client.certificate, "client-key-data": client.key}
    encoded = {name: base64.b64encode(pem.encode()).decode() for name, pem in user.items()}
    write_kubeconfig(path, server, encoded, "")
    content = json.loads(path.read_text())
    cluster = content["clusters"][0]["cluster"]
    del cluster["certificate-authority"]
    cluster["certificate-authority-data"] = base64.b64encode(ca_pem.encode()).decode()
    path.write_text(json.dumps(content))
    return path


def test_what_a_kubeconfig_embeds_outlives_cleaners_of_tmp(
    tmp_path: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 10 or 30 days they took the files by which each new connection was made."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    client = make_identity("embedded client")
    context = identity.server_context(tmp_path, trusted_clients=client.certificate)
    with ApiServer(tokens=["none"], tls=context) as server:
        server.objects.create("nodes", {"metadata": {"name": "n1"}})
        path = embedding(tmp_path / "kubeconfig", server, identity.certificate, client)
        cluster = KubeCluster(KubeTransport(path), node_name="n1")
        assert cluster.get_node().name == "n1"
        left = list(temporary.iterdir())
        for file in left:
            file.unlink()
        server.stop()
        server.start()
        assert cluster.get_node().name == "n1"
        assert not left, "an agent that is killed leaves a key there"


def test_credentials_that_change_keep_no_files_open(tmp_path: Path, identity: Identity) -> None:
    path = tmp_path / "kubeconfig"
    nobody = ApiServer(port=1, tls=identity.server_context(tmp_path))
    held = []
    for number in range(4):
        client = make_identity(f"client {number}")
        embedding(path, nobody, identity.certificate, client)
        KubeCluster(KubeTransport(path), node_name="n1").connect()
        held.append(sum("vgpu-agent-kubeconfig" in link for link in open_files()))
    assert (
        held[1] == held[2] == held[3] == 1 + 2 * 2
    )  # the authority, and two certificates and keys


def test_credentials_in_use_outlive_new_ones_that_are_refused(
    tmp_path: Path, identity: Identity
) -> None:
    path = tmp_path / "kubeconfig"
    nobody = ApiServer(port=1, tls=identity.server_context(tmp_path))
    client = make_identity("in use")
    embedding(path, nobody, identity.certificate, client)
    _, in_use = kube_config.load_configuration(path)
    embedding(path, nobody, identity.certificate, make_identity("new"))
    content = json.loads(path.read_text())
    content["clusters"][0]["cluster"]["proxy-url"] = "socks5://proxy:1080"
    path.write_text(json.dumps(content))
    for _ in range(3):
        with pytest.raises(ConfigError, match="only http and https"):
            kube_config.load_configuration(path)
    assert Path(in_use.cert_file).read_text() == client.certificate


def open_files() -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the directory itself
            yield str(link.readlink())


def test_a_kernel_that_does_not_know_the_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    make = embedded_files.memory_file

    def older(flags: int) -> int:
        if flags & embedded_files.NO_EXECUTION:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return make(flags)

    monkeypatch.setattr(embedded_files, "memory_file", older)
    files = EmbeddedFiles()
    assert Path(files.path_of("a key")).read_text() == "a key"
    for _ in range(2):
        files.loaded()
    assert Path(files.path_of(b"another")).read_bytes() == b"another"


def test_files_in_memory_need_no_new_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is shipped is built for a libc without them, and so has no function for them."""
    monkeypatch.delattr(os, "memfd_create")
    path = EmbeddedFiles().path_of("a certificate")
    assert Path(path).read_text() == "a certificate"
    assert not os.get_inheritable(int(Path(path).name))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(None, "cannot be read", id="missing"),
        pytest.param("", "cannot be used", id="empty"),
        pytest.param("a: [", "cannot be used", id="not YAML"),
        pytest.param("a: 1", "cannot be used", id="something else"),
        pytest.param("exec", "gives no credentials", id="plugin fails"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "kubeconfig"
    if text == "exec":
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false"}
        write_kubeconfig(path, ApiServer(port=1), {"exec": plugin}, "")
    elif text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        KubeCluster(KubeTransport(path), node_name="n1").connect()


def test_a_plugin_that_hangs_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that asks a service which does not answer: the agent did not start, and said nothing."""
    monkeypatch.setattr(exec_plugin, "ANSWERS_WITHIN_S", 0.5)
    plugin, child = tmp_path / "plugin", tmp_path / "child"
    plugin.write_text(f"#!/bin/sh\nsleep 30 &\necho $! > {child}\nwait\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    path = write_kubeconfig(tmp_path / "kubeconfig", ApiServer(port=1), user, "")
    with pytest.raises(ConfigError, match=r"plugin did not answer within 0.5 s, and was ended"):
        KubeCluster(KubeTransport(path), node_name="n1").connect()
    eventually(lambda: not runs(int(child.read_text())), what="its child is ended, too")


def runs(pid: int) -> bool:
    """Whether there is a process of this pid that has not ended; nobody may have waited for it."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.usefixtures("quick_reload")
def test_an_api_server_that_has_got_another_address_is_found(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with ApiServer() as old:
        old.objects.create("nodes", {"metadata": {"name": "n1"}})
        cluster = KubeCluster(KubeTransport(old.write_kubeconfig(path)), node_name="n1")
        assert cluster.get_node().name == "n1"
    with pytest.raises(ClusterUnavailable):
        cluster.get_node()
    with ApiServer() as new:
        new.objects.create("nodes", {"metadata": {"name": "n1", "labels": {"of": "the new one"}}})
        path.write_text("half of it: {")
        with pytest.raises(ClusterUnavailable, match="cannot be reached"):
            cluster.get_node()
        new.write_kubeconfig(path)
        assert cluster.get_node().labels == {"of": "the new one"}


@pytest.mark.usefixtures("quick_reload")
def test_an_answer_that_is_lost_while_the_kubeconfig_changes_is_found_out(
    server: ApiServer, tmp_path: Path
) -> None:
    path = server.write_kubeconfig(tmp_path / "kubeconfig", "first")
    cluster = KubeCluster(KubeTransport(path), node_name="n1")
    cluster.patch_node({LOCK: "mine"}, deadline_s=soon())
    server.write_kubeconfig(path, "second")
    server.lose_answer(verb="patch")
    cluster.remove_node_annotation(LOCK, expected="mine", deadline_s=soon())
    assert LOCK not in annotations(server, "nodes", "n1")


@pytest.mark.usefixtures("quick_reload")
def test_it_is_said_that_credentials_were_loaded_anew_once_they_serve(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(kube_transport.log, "info", lambda event, **_: said.append(event))
    path = server.write_kubeconfig(tmp_path / "kubeconfig", "wrong")
    cluster = KubeCluster(KubeTransport(path), node_name="n1")
    server.accept_tokens("right")
    for _ in range(3):
        with pytest.raises(ClusterDenied):
            cluster.get_node()
    assert said == []
    server.write_kubeconfig(path, "right")
    for _ in range(3):
        assert cluster.get_node().name == "n1"
    assert said == ["credentials reloaded"]


def test_refused_credentials_are_not_loaded_in_a_loop(server: ApiServer, tmp_path: Path) -> None:
    loads = []
    path = server.write_kubeconfig(tmp_path / "kubeconfig", "wrong")

    def load() -> Any:
        loads.append(1)
        return kube_config.load_configuration(path)

    cluster = KubeCluster(KubeTransport(load=load), node_name="n1")
    server.accept_tokens("right")
    for _ in range(5):
        with pytest.raises(ClusterDenied):
            cluster.get_node()
    assert len(loads) <= 2


# --- the light import -------------------------------------------------------------------------------

HEAVY = ("pydantic", "requests", "oauthlib", "requests_oauthlib", "websocket", "dateutil",
         "kubernetes.client.api_client", "kubernetes.watch", "kubernetes.stream")  # fmt: skip


def run_python(program: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("loader", ["incluster_config", "kube_config"])
def test_only_what_is_needed_is_imported(loader: str) -> None:
    """Fails when a new version of the package needs another road: see `import_client`."""
    loaded, light = run_python(
        "import sys, json; from agent.adapters.kube_config import import_client\n"
        f"package = import_client({loader!r})\n"
        "package.configuration.Configuration(); package.rest.RESTClientObject\n"
        "print(json.dumps([sorted(sys.modules), package.light]))"
    )
    assert light
    assert not set(HEAVY) & set(loaded)


def test_threads_may_import_at_once() -> None:
    lights = run_python(
        "import json, concurrent.futures as f\n"
        "from agent.adapters.kube_config import import_client\n"
        "names = ['kube_config', 'incluster_config'] * 4\n"
        "packages = list(f.ThreadPoolExecutor(8).map(import_client, names))\n"
        "print(json.dumps([package.light for package in packages]))"
    )
    assert lights == [True] * 8


def test_oidc_logins_get_the_whole_package() -> None:
    loaded, light = run_python(
        "import sys, json; from agent.adapters.kube_config import import_client\n"
        "import_client('kube_config')\n"
        "package = import_client('kube_config', oidc=True)\n"
        "package.loader.OAuth2Session.refresh_token; package.loader.ApiClient.call_api\n"
        "print(json.dumps([sorted(sys.modules), package.light]))"
    )
    assert not light
    assert {"oauthlib", "requests"} <= set(loaded)


def test_a_version_that_does_not_bear_it_is_imported_plainly() -> None:
    loaded, light = run_python(
        "import sys, json; from agent.adapters import kube_config\n"
        "kube_config._EAGER = ('kubernetes', 'kubernetes.client')\n"
        "package = kube_config.import_client('incluster_config')\n"
        "print(json.dumps([sorted(sys.modules), package.light]))"
    )
    assert not light
    assert "kubernetes.watch" in loaded


def test_nothing_is_imported_before_it_is_needed() -> None:
    loaded = run_python(
        "import sys, json; from agent.adapters.cluster import KubeCluster, KubeTransport\n"
        "KubeCluster(KubeTransport(), node_name='n1')\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert not {"kubernetes", "urllib3", "ssl"} & set(loaded)
