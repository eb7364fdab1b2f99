"""The image: what is in it, that it is the same each time, and that it runs as the manifest says."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from bundle.conftest import ROOT, made
from bundling.image import image
from certificates import make_identity
from image_archive import ImageArchive
from manifests import only, plain
from pod_cgroups import CgroupsUnavailable, pod_cgroup
from pod_container import SERVICE_ACCOUNT, PodBundle, bundle_of, mount, virtual

from agent.sim.apiserver import ApiServer
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from agent.version import VERSION
from tests.peers.container_tools import PeersUnavailable, container_tools
from tests.peers.runc import Runc, unusable
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("image")]

OCI = "org.opencontainers.image"
SHELLS = {"sh", "bash", "dash", "busybox", "env", "python3", "apt-get", "dpkg"}


@pytest.fixture(scope="session")
def image_file() -> Path:
    return made(ROOT / "dist" / f"vgpu-agent-{VERSION}-linux-x86_64.oci.tar")


@pytest.fixture(scope="session")
def archive(image_file: Path) -> ImageArchive:
    return ImageArchive.read(image_file)


# --- what is in it ------------------------------------------------------------------------------


def test_both_indexes_tell_of_the_same_image(archive: ImageArchive) -> None:
    assert archive.json("oci-layout") == {"imageLayoutVersion": "1.0.0"}
    assert archive.json("index.json")["schemaVersion"] == archive.manifest["schemaVersion"] == 2
    described = archive.described
    assert described["annotations"]["io.containerd.image.name"].endswith(f"/vgpu-agent:{VERSION}")
    [docker] = archive.json("manifest.json")
    paths = [
        f"blobs/{d['digest'].replace(':', '/')}"
        for d in (archive.manifest["config"], *archive.manifest["layers"])
    ]
    assert [docker["Config"], *docker["Layers"]] == paths
    assert docker["RepoTags"] == [f"vgpu-agent:{VERSION}"]
    blobs = {*paths, f"blobs/{described['digest'].replace(':', '/')}"}
    assert set(archive.files) == {*blobs, "oci-layout", "index.json", "manifest.json"}


def test_its_digests_are_those_of_its_layers(archive: ImageArchive) -> None:
    assert len(list(archive.layers())) == 2


def test_it_starts_the_agent_as_root(archive: ImageArchive) -> None:
    config = archive.config
    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    started = config["config"]
    assert (started["Entrypoint"], started["Cmd"]) == (["/opt/vgpu-agent/vgpu-agent"], ["run"])
    assert (started["User"], started["StopSignal"]) == ("0:0", "SIGTERM")
    labels = started["Labels"]
    assert labels == archive.manifest["annotations"]
    assert (labels[f"{OCI}.title"], labels[f"{OCI}.version"]) == ("vgpu-agent", VERSION)
    assert labels[f"{OCI}.licenses"] == "Apache-2.0"


def test_there_is_no_shell_and_nothing_that_gives_rights(archive: ImageArchive) -> None:
    names = []
    for member, content in archive.members():
        names.append(member.name)
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
        assert member.issym() or not member.mode & 0o6022, f"{member.name} {member.mode:o}"
        assert not content.startswith(b"#!") or not member.mode & 0o111, member.name
    assert not SHELLS & {Path(name).name for name in names}
    assert len(names) == len(set(names))
    assert {"usr/share/doc/libc6/copyright", "usr/share/doc/vgpu-agent/LICENSE"} <= set(names)
    assert not [name for name in names if name.split("/")[0] in ("tmp", "home", "root")]


def test_it_is_the_same_when_it_is_made_again_elsewhere(
    archive: ImageArchive, image_file: Path, frozen_folder: Path, tmp_path: Path
) -> None:
    revision = archive.manifest["annotations"].get(f"{OCI}.revision", "")
    provenance: Mapping[str, object] = {
        "revision": revision.removesuffix("-modified"),
        "modified": revision.endswith("-modified"),
    }
    copy = tmp_path / "copy"
    shutil.copytree(frozen_folder, copy, copy_function=shutil.copyfile)
    for path in frozen_folder.rglob("*"):  # times and groups differ, the right to run does not
        (copy / path.relative_to(frozen_folder)).chmod(path.stat().st_mode | 0o040)
    again = image(copy, VERSION, provenance, tmp_path / "image.tar")
    assert again.read_bytes() == image_file.read_bytes()


# --- it runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A short path: unix sockets live in it."""
    path = Path(tempfile.mkdtemp(prefix="vgpu-img-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def runc(scratch: Path) -> Runc:
    try:
        tools = container_tools()
    except PeersUnavailable as error:
        pytest.skip(f"no runc: {error}")
    if why := unusable(tools, scratch):
        pytest.skip(f"runc cannot run containers here: {why}")
    return Runc(tools, scratch / "state")


@pytest.fixture(scope="module")
def bundle_directory(archive: ImageArchive, scratch: Path) -> Path:
    archive.unpack(scratch / "bundle" / "rootfs")
    return scratch / "bundle"


def files_of(rootfs: Path) -> set[str]:
    return {str(path.relative_to(rootfs)) for path in rootfs.rglob("*") if path.is_file()}


def alone(directory: Path, *args: str, **env: str) -> PodBundle:
    """A container that is given nothing: no rights, no network, nowhere to write but /dev/shm."""
    return PodBundle(
        directory,
        args=["/opt/vgpu-agent/vgpu-agent", *args],
        env=env,
        namespaces=("pid", "ipc", "uts", "mount", "network"),
    )


def test_it_tells_its_version_where_nothing_can_be_written(
    runc: Runc, bundle_directory: Path
) -> None:
    before = files_of(bundle_directory / "rootfs")
    done = runc.run(alone(bundle_directory, "version", "--json"), "vgpu-version")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["version"] == VERSION
    assert files_of(bundle_directory / "rootfs") == before


def test_the_demo_runs_as_the_first_process(runc: Runc, bundle_directory: Path) -> None:
    """It wants one place to write, for its simulated node; libraries are loaded from there."""
    demo = alone(bundle_directory, "demo", "--json", TMPDIR="/scratch")
    writable = virtual("/scratch", "tmpfs", "nosuid", "nodev", "mode=700", "size=65536k")
    done = runc.run(replace(demo, bound=[writable]), "vgpu-demo")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(done.stdout)


# --- as the DaemonSet says ----------------------------------------------------------------------

QUICK = {"VGPU_CACHE_GC_AFTER": "10s", "VGPU_CACHE_GC_INTERVAL": "1s"}
QUICK |= {"VGPU_PROCESS_INTERVAL": "0.2s", "VGPU_PROBE_INTERVAL": "0.5s"}


class PodNode(SimNode):
    """A simulated node whose agent is the DaemonSet's container."""

    def __init__(self, root: Path, runc: Runc, bundle_directory: Path, config: dict) -> None:
        super().__init__(root, ["runc"])
        self.runc, self.bundle_directory, self.image_config = runc, bundle_directory, config
        self.container = f"vgpu-agent-{os.getpid()}-{root.name}"
        identity = make_identity()
        self.in_cluster = ApiServer(tokens=["token"], tls=identity.server_context(root))
        self.account = root / "account"
        self.in_cluster.write_service_account(self.account, "token", identity.certificate)
        self.host = {
            "/var/lib/kubelet/device-plugins": root / "dp",
            "/var/lib/kubelet/pod-resources": root / "pr",
            "/usr/local/vgpu": root / "vgpu",
            "/var/lib/vgpu-agent": root / "agent-state",
            "/proc": Path("/proc"),
        }

    def start(self) -> "PodNode":
        super().start()
        self.in_cluster.objects = self.api.objects  # one cluster, by HTTP for us, by TLS for pods
        self.in_cluster.start()
        for name in ("vgpu", "agent-state"):  # kubelet makes them: DirectoryOrCreate
            (self.root / name).mkdir(mode=0o755)
        return self

    def stop(self) -> None:
        super().stop()
        self.runc.delete(self.container)
        self.in_cluster.stop()

    def start_container(self, without: tuple[str, ...] = ()) -> None:
        """Run the agent in its container; its log goes to `self.log`."""
        driver = self.driver.config_path.parent
        bundle = bundle_of(
            only("DaemonSet", plain()),
            self.image_config,
            self.bundle_directory,
            host=self.host,
            node_name=self.name,
            env={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(self.in_cluster.port),
                "VGPU_METRICS_BIND_ADDRESS": f"127.0.0.1:{self.metrics_port}",
                "VGPU_SIM_DRIVER": str(self.driver.config_path),
                **QUICK,
            },
            bound=[
                mount(SERVICE_ACCOUNT, self.account),
                # The part of NVIDIA's runtime.
                mount(
                    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
                    self.driver.libraries / "libnvidia-ml.so.1",
                ),
                mount(str(driver), driver, "rw"),
            ],
            without=without,
        )
        bundle.write()
        words = self.runc.command("run", "--bundle", str(bundle.directory), self.container)
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.runc.tools.environ,
            )
        self.wait("registration", lambda: self.allocatable() > 0, 60)
        self.wait("readiness", self.ready, 60)

    def on_host(self, path: str) -> Path:
        """Where a path that kubelet was told lies on this machine."""
        for place, here in self.host.items():
            if path == place or path.startswith(f"{place}/"):
                return here / path.removeprefix(place).lstrip("/")
        raise AssertionError(f"{path} is at no place that the pod mounts")


MakeNode = Callable[[], PodNode]


@pytest.fixture
def make_node(runc: Runc, bundle_directory: Path, archive: ImageArchive) -> Iterator[MakeNode]:
    with ExitStack() as stack:

        def make() -> PodNode:
            root = Path(tempfile.mkdtemp(prefix="vgpu-pod-"))
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            node = PodNode(root, runc, bundle_directory, archive.config)
            stack.callback(lambda: print(node.log_text()))  # noqa: T201 - with a test that fails
            node.start()
            stack.callback(node.stop)
            for number in range(2):
                node.driver.add_gpu(number, SimGpu(uuid=made_up_uuid(number)))
            return node

        yield make


def test_the_manifests_mounts_and_rights_are_enough(make_node: MakeNode) -> None:
    """Register, publish, grant, stop; and everything that kubelet is told is there."""
    node = make_node()
    rootfs = node.bundle_directory / "rootfs"
    before = files_of(rootfs)
    node.start_container()
    assert len(list((node.root / "vgpu").glob("libvgpu.so.*"))) == 1, "before it registered"
    assert node.allocatable() == 20
    assert "hami.io/node-nvidia-register" in node.annotations()
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    grant = pod.admitted.containers["main"]
    for found in grant.mounts:
        assert node.on_host(found.host_path).exists(), found
    assert (
        node.on_host(f"/usr/local/vgpu/containers/{pod.uid}_main").stat().st_mode & 0o777 == 0o777
    )
    assert eventually(
        lambda: node.pod_annotations("team", "pod")["hami.io/bind-phase"] == "success"
    )
    assert node.stop_agent(signal.SIGTERM) == 0
    assert "agent_stopped" in node.log_text()
    assert files_of(rootfs) - before <= {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"}, "a mount"


def test_it_knows_its_grants_after_a_crash(make_node: MakeNode) -> None:
    node = make_node()
    node.start_container()
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    node.stop_agent(signal.SIGKILL)
    node.runc.delete(node.container)
    node.start_container()
    assert node.run_pod("other", [Ask(memory_mib=1000)]).admitted.ok
    assert node.stop_agent(signal.SIGTERM) == 0


@dataclass(frozen=True)
class Left:
    """What a pod that is gone has left."""

    closed: Path
    sticky: Path


def leave(node: PodNode) -> Left:
    """Two containers' directories, in which another user made what root without rights keeps."""
    top = node.root / "vgpu" / "containers"
    top.mkdir(mode=0o755, exist_ok=True)
    found = []
    for name, mode in (("closed", 0o700), ("sticky", 0o1777)):
        own = top / f"6f1d7b2e-0000-4000-8000-000000000000_{name}"
        inner = own / "inner"
        inner.mkdir(parents=True)
        (inner / "file").touch()
        own.chmod(0o777)
        for path in (inner / "file", inner):
            os.chown(path, 1000, 1000)
        inner.chmod(mode)
        found.append(own)
    return Left(*found)


@pytest.mark.parametrize(
    ("without", "fails"),
    [
        pytest.param((), set(), id="as shipped"),
        pytest.param(("DAC_OVERRIDE",), {"closed"}, id="without DAC_OVERRIDE"),
        pytest.param(("FOWNER",), {"sticky"}, id="without FOWNER"),
        pytest.param(("SYS_PTRACE",), {"look"}, id="without SYS_PTRACE"),
    ],
)
def test_every_capability_is_needed_and_no_other(
    make_node: MakeNode, without: tuple[str, ...], fails: set[str]
) -> None:
    node = make_node()
    left = leave(node)
    node.start_container(without)
    pod = node.run_pod("pod", [Ask(memory_mib=1000)])
    assert pod.admitted.ok, pod.admitted.message
    with ExitStack() as stack:
        reason = "processes not readable" if "look" in fails else "library not loaded"
        look_at_a_process(node, pod, stack)
        eventually(lambda: f'reason="{reason}"' in node.fetch("/metrics")[1], what=reason)
    gone = [left.sticky] if "closed" in fails else [left.closed]
    gone = [left.closed, left.sticky] if not fails & {"closed", "sticky"} else gone
    eventually(lambda: not any(path.exists() for path in gone), within_s=40, what=str(gone))
    stays = {left.closed, left.sticky} - set(gone)
    eventually(lambda: not stays or "cache_directory_not_deleted" in node.log_text(), within_s=20)
    assert all((path / "inner").exists() for path in stays)
    assert node.stop_agent(signal.SIGTERM) == 0


def look_at_a_process(node: PodNode, pod: RanPod, stack: ExitStack) -> None:
    """A process of the pod, by its cgroup, that has a GPU open and not our library."""
    try:
        cgroup = stack.enter_context(pod_cgroup(pod.uid))
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    device = node.root / "dev" / "nvidia0"
    device.parent.mkdir()
    device.touch()
    own = node.root / "vgpu" / "containers" / f"{pod.uid}_main"
    (there := node.root / "mounted").mkdir()
    script = f"mount --bind {own} {there} && exec 3<>{device} && exec sleep 1000"
    process = subprocess.Popen(cgroup.command("unshare", "--mount", "sh", "-c", script))

    def end() -> None:
        process.kill()
        process.wait(10)

    stack.callback(end)
