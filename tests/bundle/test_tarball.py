"""The air-gapped bundle: it is whole, everything in it is told of, and pages lead to what is there."""

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from bundling.freeze import EPOCH_S
from install_page import commands

from agent.shipped import shipped
from agent.version import VERSION

TOP = f"vgpu-agent-{VERSION}-linux-x86_64"
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def unpacked(tarball_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("tarball")
    subprocess.run(["tar", "-xzf", tarball_file, "-C", target], check=True)
    assert [path.name for path in target.iterdir()] == [TOP]
    return target / TOP


def test_nothing_of_the_building_machine_is_in_it(tarball_file: Path) -> None:
    with tarfile.open(tarball_file) as opened:
        members = opened.getmembers()
    names = [member.name for member in members]
    assert len(set(names)) == len(names)
    for member in members:
        assert member.name.split("/")[0] == TOP
        assert ".." not in member.name.split("/")
        assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")
        assert (member.mtime, member.mode & 0o7022) == (EPOCH_S, 0), member.name
        assert member.isfile() or member.isdir(), member.name


def test_its_list_of_sums_is_of_every_file(unpacked: Path) -> None:
    words = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(words, cwd=unpacked, check=True)
    listed = {line.split("  ", 1)[1] for line in (unpacked / "SHA256SUMS").read_text().splitlines()}
    there = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
    assert there - listed == {"SHA256SUMS"}


def test_it_has_what_the_other_files_of_the_release_have(
    unpacked: Path, frozen_folder: Path, image_file: Path
) -> None:
    assert (unpacked / "dist" / image_file.name).read_bytes() == image_file.read_bytes()
    frozen = unpacked / "vgpu-agent"
    for path in (p for p in frozen_folder.rglob("*") if p.is_file()):
        copy = frozen / path.relative_to(frozen_folder)
        assert copy.read_bytes() == path.read_bytes(), copy
        assert bool(copy.stat().st_mode & 0o100) == bool(path.stat().st_mode & 0o100), copy
    assert len(list(frozen.rglob("*"))) == len(list(frozen_folder.rglob("*")))
    bill = image_file.with_name(f"{TOP}.cdx.json")
    assert (unpacked / "sbom.cdx.json").read_bytes() == bill.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        *("install.sh", "uninstall.sh", "README.md", "CHANGELOG.md", "LICENSE", "THIRD-PARTY.txt"),
        *("packaging/systemd/vgpu-agent.service", "packaging/systemd/vgpu-agent.env"),
        *("packaging/daemonset/base/daemonset.yaml", "packaging/daemonset/base/rbac.yaml"),
        *("packaging/grafana/vgpu-agent.json", "packaging/prometheus/vgpu-agent.rules.yaml"),
        *("docs/install/systemd.md", "docs/install/kubernetes.md", "docs/configuration.md"),
        "vgpu-agent/_internal/agent/web/index.html",
        *("vgpu-agent/_internal/licences/LICENSE", "vgpu-agent/_internal/licences/THIRD-PARTY.txt"),
    ],
)
def test_it_has(unpacked: Path, name: str) -> None:
    assert (unpacked / name).stat().st_size > 0


def test_it_has_every_file_that_comes_along(unpacked: Path) -> None:
    assert [name for name in shipped() if not (unpacked / name).is_file()] == []


def test_the_single_file_gives_the_same_files(
    unpacked: Path, single_file: Path, tmp_path: Path
) -> None:
    """By the command of docs/install/kubernetes.md: those that are for others than the agent."""
    (tmp_path / TOP).symlink_to(single_file)
    [words] = commands(f"./{TOP}")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()} - {Path(TOP)}
    assert {Path(line) for line in done.stdout.splitlines()} == written
    same = {path: unpacked / path for path in written if path.parts[0] == "packaging"}
    names = {p.relative_to(unpacked) for p in (unpacked / "packaging").rglob("*") if p.is_file()}
    assert set(same) == names
    same |= {Path("licences") / name: unpacked / name for name in ("LICENSE", "THIRD-PARTY.txt")}
    assert set(same) == written
    for path, other in same.items():
        assert (tmp_path / path).read_bytes() == other.read_bytes(), path


def test_pages_lead_to_files_that_are_in_it(unpacked: Path) -> None:
    dangling = [
        f"{page.relative_to(unpacked)}: {link}"
        for page in sorted(unpacked.rglob("*.md"))
        for link in _LINK.findall(page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert dangling == []


def test_the_sums_beside_it_are_of_every_file_of_the_release(tarball_file: Path) -> None:
    dist = tarball_file.parent
    words = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(words, cwd=dist, check=True)
    listed = {line.split("  ", 1)[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    there = {path.name for path in dist.iterdir()} - {"SHA256SUMS", "SHA256SUMS.sig"}
    assert listed == there == {TOP, *(f"{TOP}.{end}" for end in ("cdx.json", "oci.tar", "tar.gz")), "provenance.json"}  # fmt: skip


def test_its_provenance_names_every_file_and_what_it_was_made_of(tarball_file: Path) -> None:
    dist = tarball_file.parent
    told = json.loads((dist / "provenance.json").read_bytes())
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {one["name"]: one["digest"]["sha256"] for one in told["subject"]}
    files = {p for p in dist.iterdir() if p.name.startswith(TOP)}
    assert subjects == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    made = told["predicate"]["buildDefinition"]
    record = json.loads((dist.parent / ".build" / "dist" / "build.json").read_bytes())
    assert {name: made["externalParameters"][name] for name in record} == record
    sources = {one["name"]: one["digest"] for one in made["resolvedDependencies"]}
    assert sources["the tree"] == {"gitCommit": record["revision"]}
    assert {"requirements/frozen.lock", "packaging/runtime/go.sum"} <= sources.keys()
    assert told["predicate"]["runDetails"]["builder"]["id"]
