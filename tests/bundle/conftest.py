"""The artifact under test: what `build.py dist` left in dist/ and .build/dist."""

from pathlib import Path

import pytest

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
