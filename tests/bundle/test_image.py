"""The image: what is in it, that it is the same each time, and that tools and runtimes take it."""

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from bundle.conftest import ROOT
from bundling.image import image
from image_archive import ImageArchive
from install_page import commands
from manifests import container_of, plain
from peers.container_tools import PeersUnavailable
from peers.image_tools import NAMESPACE, Containerd, podman, running_docker, skopeo
from peers.runc import Runc
from pod_container import PodBundle, virtual
from pod_node import IMAGE
from waiting import eventually

from agent.version import VERSION

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("image")]

OCI = "org.opencontainers.image"
SHELLS = {"sh", "bash", "dash", "busybox", "env", "python3", "apt-get", "dpkg"}


# --- what is in it ------------------------------------------------------------------------------


def test_both_indexes_tell_of_the_same_image(archive: ImageArchive) -> None:
    assert archive.json("oci-layout") == {"imageLayoutVersion": "1.0.0"}
    assert archive.json("index.json")["schemaVersion"] == archive.manifest["schemaVersion"] == 2
    described = archive.described
    assert described["annotations"]["io.containerd.image.name"] == IMAGE
    [docker] = archive.json("manifest.json")
    paths = [
        f"blobs/{d['digest'].replace(':', '/')}"
        for d in (archive.manifest["config"], *archive.manifest["layers"])
    ]
    assert [docker["Config"], *docker["Layers"]] == paths
    assert docker["RepoTags"] == [IMAGE]
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


# --- tools take it ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_skopeo_reads_and_copies_it(
    image_file: Path, archive: ImageArchive, tmp_path: Path, kind: str
) -> None:
    """As podman, buildah and CRI-O read it, whichever of the two indexes they look at."""
    try:
        tool = skopeo()
    except PeersUnavailable as error:
        pytest.skip(f"no skopeo: {error}")
    config = tool.run("inspect", "--config", "--raw", f"{kind}:{image_file}")
    assert (config.returncode, config.stderr) == (0, "")
    assert json.loads(config.stdout) == archive.config
    copied = tool.run("copy", f"{kind}:{image_file}", f"dir:{tmp_path / 'copy'}")
    assert copied.returncode == 0, copied.stderr  # which it refuses when a digest is wrong


def test_skopeo_refuses_one_that_was_changed(image_file: Path, tmp_path: Path) -> None:
    try:
        tool = skopeo()
    except PeersUnavailable as error:
        pytest.skip(f"no skopeo: {error}")
    content = bytearray(image_file.read_bytes())
    content[len(content) // 2] ^= 1  # within the largest layer
    (spoilt := tmp_path / "spoilt.tar").write_bytes(content)
    copied = tool.run("copy", f"oci-archive:{spoilt}", f"dir:{tmp_path / 'copy'}")
    assert copied.returncode != 0


# --- it runs ------------------------------------------------------------------------------------


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


def test_the_command_that_the_instructions_give_loads_it(containerd: Containerd) -> None:
    [words] = commands("ctr")
    assert words[1:3] == ["--namespace", NAMESPACE]
    done = containerd.ctr(*words[3:-1], ROOT / words[-1])
    assert (done.returncode, done.stderr) == (0, "")


def test_containerd_runs_it(containerd: Containerd) -> None:
    words = ("--rm", "--read-only", "--seccomp", IMAGE, "version-of-image")
    done = containerd.ctr("run", *words, "/opt/vgpu-agent/vgpu-agent", "version")
    assert (done.returncode, done.stdout) == (0, f"vgpu-agent {VERSION}\n"), done.stderr


def test_kubelet_finds_it_in_containerd(containerd: Containerd) -> None:
    """So that it does not pull: it asks by the name in the manifest, and is told the image's id."""
    image = container_of(plain())["image"]
    assert image in containerd.ctr("image", "ls", "--quiet").stdout.split()
    eventually(lambda: containerd.image_status(image), within_s=60, what="CRI has seen the import")
    assert containerd.image_status("localhost/another:1") == b""


def test_podman_loads_it_under_that_name(image_file: Path, scratch: Path) -> None:
    (state := scratch / "podman").mkdir()
    try:
        tool = podman(state)
    except PeersUnavailable as error:
        pytest.skip(f"no podman: {error}")
    done = tool.run("load", "--quiet", "--input", image_file)
    assert (done.returncode, done.stdout) == (0, f"Loaded image: {IMAGE}\n"), done.stderr
    [told] = json.loads(tool.run("image", "inspect", IMAGE).stdout)
    assert told["Config"]["Entrypoint"] == ["/opt/vgpu-agent/vgpu-agent"]
    assert told["Labels"][f"{OCI}.version"] == VERSION


def test_docker_loads_and_runs_it(image_file: Path, runc: Runc, scratch: Path) -> None:
    (state := scratch / "docker").mkdir()
    with ExitStack() as stack:
        try:
            docker = stack.enter_context(running_docker(state))
        except PeersUnavailable as error:
            pytest.skip(f"no docker: {error}")
        done = docker.run("load", "--input", image_file)
        assert (done.returncode, done.stdout) == (0, f"Loaded image: {IMAGE}\n"), done.stderr
        alone = ("--rm", "--network=none", "--read-only", "--cap-drop=ALL", "--pull=never")
        done = docker.run("run", *alone, IMAGE, "version")
        assert (done.returncode, done.stdout) == (0, f"vgpu-agent {VERSION}\n"), done.stderr
