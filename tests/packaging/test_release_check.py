"""What stands between this tree and a release."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from bundling import checksums
from bundling.release_check import State, missing, stale, wrong_sums

HEAD = "a" * 40
COMPLETE = State(
    version="1.2.3",
    changelog="# Changelog\n\n## [1.2.3] - 2026-11-20\n\n## [1.2.2] - 2026-10-01\n",
    tree={"revision": HEAD, "modified": False},
    made={"version": "1.2.3", "revision": HEAD, "modified": False},
    wrong_sums=(),
    stale_locks=(),
)


def test_nothing_is_missing() -> None:
    assert missing(COMPLETE) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        pytest.param({"version": "1.3.0"}, ["begins with '## [1.2.3]", "has version 1.2.3"], id="another version"),
        pytest.param({"changelog": "## [Unreleased]\n\n## [1.2.3] - 2026-11-20\n"}, ["begins with '## [Unreleased]'"], id="unreleased entries"),
        pytest.param({"changelog": "## [1.2.3]\n"}, ["`## [1.2.3] - DATE`"], id="an entry without a date"),
        pytest.param({"changelog": ""}, ["begins with 'nothing'"], id="no entries"),
        pytest.param({"tree": {"revision": HEAD, "modified": True}}, ["not committed"], id="a changed tree"),
        pytest.param({"tree": {"revision": None, "modified": None}}, ["not a git checkout", "not from HEAD"], id="no checkout"),
        pytest.param({"made": None}, ["no release in dist/"], id="nothing was made"),
        pytest.param({"made": {"version": "1.2.3", "revision": "b" * 40}}, ["made from bbb"], id="made from another commit"),
        pytest.param({"made": {"version": "1.2.3", "revision": HEAD, "modified": True}}, ["made from a tree with changes"], id="made from a changed tree"),
        pytest.param({"made": {}}, ["has version None", "made from None"], id="a provenance that says nothing"),
        pytest.param({"wrong_sums": ("file",)}, ["dist/file is not what"], id="a file that differs"),
        pytest.param({"stale_locks": ("a lock",)}, ["a lock"], id="a lock that is old"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told(changed: Mapping[str, object], told: list[str]) -> None:
    found = missing(replace(COMPLETE, **changed))  # type: ignore[arg-type]
    assert len(found) == len(told), found
    for sentence, part in zip(found, told, strict=True):
        assert part in sentence


@pytest.mark.parametrize(
    ("wanted", "locked", "told"),
    [
        pytest.param("grpcio\n", "grpcio==1.85.1 \\\n", [], id="any version"),
        pytest.param("# a remark\n-r run.in\n\n", "", [], id="no requirement"),
        pytest.param("types-PyYAML # why\n", "types-pyyaml==6.0 \\\n", [], id="written otherwise"),
        pytest.param("a_b.c>=2\n", "a-b-c==2.0\n", [], id="dots and dashes"),
        pytest.param("grpcio\n", "grpcio-tools==1\n", ["has no grpcio"], id="not there"),
        pytest.param("grpcio>=2\n", "grpcio==1.85.1\n", ["has 1.85.1 grpcio"], id="too old"),
    ],
)
def test_a_lock_has_what_is_asked_for(wanted: str, locked: str, told: list[str]) -> None:
    found = stale(wanted, locked, "run")
    assert len(found) == len(told)
    for sentence, part in zip(found, told, strict=True):
        assert part in sentence


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    checksums.write_list(tmp_path)
    return tmp_path


def test_sums_that_are_right(dist: Path) -> None:
    (dist / "SHA256SUMS.sig").touch()
    assert wrong_sums(dist) == ()


def test_sums_that_are_wrong(dist: Path) -> None:
    (dist / "a").write_text("other")
    (dist / "b").unlink()
    (dist / "c").touch()
    assert wrong_sums(dist) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        pytest.param("vgpu-agent-1.2.3-linux-x86_64", True, id="the executable"),
        pytest.param("vgpu-agent-1.2.3-linux-x86_64.cdx.json", True, id="the bill of materials"),
        pytest.param("provenance.json", True, id="the provenance"),
        pytest.param("SHA256SUMS", False, id="not itself"),
        pytest.param("SHA256SUMS.sig", False, id="not its signature"),
    ],
)
def test_every_file_of_the_release_is_in_the_list(dist: Path, name: str, listed: bool) -> None:
    (dist / name).touch()
    text = checksums.write_list(dist).read_text()
    assert sorted(line.split()[1] for line in text.splitlines()) == ["a", "b", *[name] * listed]


def test_no_sums(tmp_path: Path) -> None:
    assert wrong_sums(tmp_path) == ("SHA256SUMS",)
