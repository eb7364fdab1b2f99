"""The artifact under test: what `build.py dist` left in dist/ and .build/dist."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from image_archive import ImageArchive
from launcher_bed import Bed
from peers.container_tools import PeersUnavailable, container_tools
from peers.image_tools import Containerd, running_containerd
from peers.runc import Runc, unusable

from agent.version import VERSION

ROOT = Path(__file__).parents[2]
MADE = "run `python3 build.py test --bundle`, which makes it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("bundle")


def made(path: Path) -> Path:
    assert path.exists(), f"{path} is not there: {MADE}"
    return path


@pytest.fixture(scope="session")
def single_file() -> Path:
    """The one executable."""
    return made(ROOT / "dist" / f"vgpu-agent-{VERSION}-linux-x86_64")


@pytest.fixture(scope="session")
def frozen_folder() -> Path:
    """The folder that is in the tarball, in the image and behind the launcher."""
    return made(ROOT / ".build" / "dist" / "frozen" / "vgpu-agent")


@pytest.fixture(scope="session")
def launcher() -> Path:
    """The launcher without anything behind it."""
    return made(ROOT / ".build" / "dist" / "launcher")


@pytest.fixture
def bed(tmp_path: Path, launcher: Path) -> Bed:
    """A place for single files that are small."""
    return Bed(tmp_path, launcher)


@pytest.fixture(scope="session")
def image_file() -> Path:
    return made(ROOT / "dist" / f"vgpu-agent-{VERSION}-linux-x86_64.oci.tar")


@pytest.fixture(scope="session")
def tarball_file() -> Path:
    return made(ROOT / "dist" / f"vgpu-agent-{VERSION}-linux-x86_64.tar.gz")


@pytest.fixture(scope="session")
def archive(image_file: Path) -> ImageArchive:
    return ImageArchive.read(image_file)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A short path: unix sockets live in it."""
    path = Path(tempfile.mkdtemp(prefix="vgpu-img-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def runc(scratch: Path) -> Runc:
    try:
        tools = container_tools()
    except PeersUnavailable as error:
        pytest.skip(f"no runc: {error}")
    if why := unusable(tools, scratch):
        pytest.skip(f"runc cannot run containers here: {why}")
    return Runc(tools, scratch / "state")


@pytest.fixture(scope="session")
def containerd(scratch: Path, runc: Runc, image_file: Path) -> Iterator[Containerd]:
    """One that has the image."""
    (state := scratch / "containerd").mkdir()
    with ExitStack() as stack:
        try:
            daemon = stack.enter_context(running_containerd(state))
        except PeersUnavailable as error:
            pytest.skip(f"no containerd: {error}")
        loaded = daemon.ctr("image", "import", image_file)
        assert loaded.returncode == 0, loaded.stderr
        yield daemon


@pytest.fixture(scope="session")
def bundle_directory(archive: ImageArchive, scratch: Path) -> Path:
    archive.unpack(scratch / "bundle" / "rootfs")
    return scratch / "bundle"
