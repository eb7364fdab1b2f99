"""The air-gapped bundle: all that a host or a cluster without a network needs, in one file."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bundling import archive, checksums
from bundling.runtime import ROOT

SCRIPTS = ROOT / "packaging" / "tarball"
PAGES = ("LICENSE", "CHANGELOG.md", "ARCHITECTURE.md")
FOR_THE_TOP = ("README.md", "install.sh", "uninstall.sh")


def tarball(
    folder: Path, image: Path, folders: Sequence[str], more: Mapping[str, bytes], target: Path
) -> Path:
    """Write the bundle of the frozen agent in `folder` and the image; give its path.

    `folders` of the tree are in it as well, and `more` files for its top directory, by name.
    Everything is below one directory, which has the name of the file.
    """
    top = target.name.removesuffix(".tar.gz")
    files = {
        **contents(folder, image, folders),
        **{name: (text, False) for name, text in more.items()},
    }
    files[checksums.NAME] = (checksums.listed({name: files[name][0] for name in files}), False)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as opened:
        parents = {str(p) for name in files for p in Path(f"{top}/{name}").parents if p.name}
        archive.directories(opened, sorted(parents))
        for name, (text, executable) in sorted(files.items()):
            archive.add_bytes(opened, f"{top}/{name}", text, 0o755 if executable else 0o644)
    target.write_bytes(archive.gzipped(content.getvalue()))
    return target


def contents(folder: Path, image: Path, folders: Sequence[str]) -> dict[str, tuple[bytes, bool]]:
    """By name: every file, and whether it is a program."""
    found = _tree(folder, "vgpu-agent")
    # They lie where they do in the tree: the commands of docs/install hold in both.
    for name in (*folders, "docs"):
        found |= _tree(ROOT / name, name)
    for page in PAGES:
        found[page] = ((ROOT / page).read_bytes(), False)
    for name in FOR_THE_TOP:
        found[name] = ((SCRIPTS / name).read_bytes(), name.endswith(".sh"))
    found[f"dist/{image.name}"] = (image.read_bytes(), False)
    return found


def _tree(folder: Path, name: str) -> dict[str, tuple[bytes, bool]]:
    return {
        f"{name}/{path.relative_to(folder)}": (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
