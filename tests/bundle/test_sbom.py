"""The bill of materials: valid, complete, and of what is really in the release."""

import json
import subprocess
import zipfile
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from bundle.conftest import ROOT
from bundling.checksums import sha256

from agent.version import VERSION


@pytest.fixture(scope="module")
def bill(tarball_file: Path) -> dict[str, Any]:
    name = f"vgpu-agent-{VERSION}-linux-x86_64.cdx.json"
    told: dict[str, Any] = json.loads(tarball_file.with_name(name).read_bytes())
    return told


def test_it_is_what_cyclonedx_says(bill: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="build.py test --bundle installs it")
    referencing = pytest.importorskip("referencing")
    from referencing.jsonschema import DRAFT7

    folder = files("cyclonedx.schema") / "_res"
    texts = {
        p.name: json.loads(p.read_text()) for p in folder.iterdir() if p.name.endswith(".json")
    }
    registry = referencing.Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}", DRAFT7.create_resource(text))
        for name, text in texts.items()
    )
    check = jsonschema.Draft7Validator(texts["bom-1.6.SNAPSHOT.schema.json"], registry=registry)
    assert [error.message for error in check.iter_errors(bill)] == []
    broken = {**bill, "components": [{**bill["components"][0], "type": "thing"}]}
    assert not check.is_valid(broken)


def test_its_licences_are_spdx_expressions(bill: dict[str, Any]) -> None:
    spdx = pytest.importorskip("license_expression", reason="build.py test --bundle installs it")
    licensing = spdx.get_spdx_licensing()
    for one in bill["components"]:
        for entry in one["licenses"]:
            expression = entry.get("expression") or entry["license"]["id"]
            assert licensing.validate(expression).errors == [], one["name"]


def test_its_references_are_of_one_component_each(bill: dict[str, Any]) -> None:
    references = [one["bom-ref"] for one in (bill["metadata"]["component"], *bill["components"])]
    assert len(set(references)) == len(references)
    depended = {ref for one in bill["dependencies"] for ref in one["dependsOn"]}
    assert depended == set(references) - {"vgpu-agent"}
    assert {one["ref"] for one in bill["dependencies"]} <= set(references)


def test_every_package_of_which_a_module_is_inside_is_in_it(
    bill: dict[str, Any], frozen_folder: Path
) -> None:
    """As the modules in the executable tell, which no list of the build is needed for."""
    named = {one["name"].lower().replace("_", "-") for one in bill["components"]}
    tops = {name.split(".")[0] for name in modules_inside(frozen_folder / "vgpu-agent")}
    with zipfile.ZipFile(frozen_folder / "_internal" / "base_library.zip") as library:
        tops |= {name.split("/")[0].removesuffix(".pyc") for name in library.namelist()}
    known = packages_distributions()
    inside = {known[top][0].lower().replace("_", "-") for top in tops if top in known}
    inside -= {"setuptools", "vgpu-agent"}
    assert len(inside) > 10
    assert inside <= named, inside - named
    packages = {one["purl"].split("/")[1].split("@")[0] for one in bill["components"] if one.get("purl", "").startswith("pkg:pypi/")}  # fmt: skip
    assert packages <= inside | {"pyinstaller"}, packages - inside


def modules_inside(program: Path) -> set[str]:
    """Names of the Python modules in PyInstaller's archive, as its own reader tells them."""
    [python] = (ROOT / ".build" / "dist" / "runtime").glob("*/venv/bin/python")
    code = """
import sys
from PyInstaller.archive.readers import CArchiveReader
print(*CArchiveReader(sys.argv[1]).open_embedded_archive("PYZ.pyz").toc)
"""
    told = subprocess.run([python, "-c", code, program], capture_output=True, text=True, check=True)
    return set(told.stdout.split())


def test_its_hashes_are_those_of_the_files(
    bill: dict[str, Any], frozen_folder: Path, launcher: Path
) -> None:
    hashed = {
        one["bom-ref"]: one["hashes"][0]["content"] for one in bill["components"] if "hashes" in one
    }
    assert hashed.pop("vgpu-agent:launcher") == sha256(launcher)
    for other, name in (("libstdc++6", "libstdc++.so.6"), ("libgcc-s1", "libgcc_s.so.1")):
        assert hashed.pop(other) == sha256(frozen_folder / "_internal" / name)
    assert hashed.pop("cpython") in {
        sha256(path) for path in (frozen_folder / "_internal").glob("libpython3.*.so.*")
    }
    compiled = [
        path for path in (frozen_folder / "_internal" / "hook").rglob("*") if path.is_file()
    ]
    assert {f"vgpu-agent:{path.relative_to(frozen_folder)}" for path in compiled} < set(hashed)
    assert {"libvgpu.so", "libcuda.so.1", "sim-tenant"} < {path.name for path in compiled}
    for reference, digest in hashed.items():
        assert digest == sha256(frozen_folder / reference.removeprefix("vgpu-agent:"))
    assert len(hashed) == len(compiled) + 1


@pytest.mark.parametrize(
    "name",
    ["cpython", "openssl", "libstdc++6", "libgcc-s1", "libc6", "pyinstaller", "musl", "grpcio"],
)
def test_it_has_what_is_not_from_python(bill: dict[str, Any], name: str) -> None:
    assert name in {one["name"] for one in bill["components"]}


def test_every_part_has_its_notice_in_the_release(
    bill: dict[str, Any], frozen_folder: Path
) -> None:
    text = (frozen_folder / "_internal" / "licences" / "THIRD-PARTY.txt").read_text()
    table, *sections = text.split("-" * 100)
    titles = "\n".join(sections[0::2])
    for one in bill["components"]:
        if not one["bom-ref"].startswith("vgpu-agent:"):
            called = f"{one['name']} {one.get('version', '')}".strip()
            assert called in table
            assert called in titles
