"""The software bill of materials: CycloneDX 1.6 in JSON, the same bytes for the same release.

Source: CycloneDX 1.6 JSON reference.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bundling.checksums import sha256
from bundling.shipped import Component

NAME = "vgpu-agent"
PROGRAM = "vgpu-agent"
OURS = "_internal/hook"  # everything that is compiled from hook/
# Parts of others that lie there as files of their own.
AS_FILES = {
    "libstdc++6": "_internal/libstdc++.so.6",
    "libgcc-s1": "_internal/libgcc_s.so.1",
    "cpython": "_internal/libpython3.14.so.1.0",
}
LAUNCHER = "launcher"


def sbom(
    folder: Path,
    launcher: Path,
    components: Sequence[Component],
    version: str,
    provenance: Mapping[str, object],
) -> bytes:
    """What the release is made of. `folder` is the frozen one."""
    product = {
        "type": "application",
        "bom-ref": NAME,
        "name": NAME,
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:generic/{NAME}@{version}",
    }
    ours = [_file(folder / name, name, kind, version) for name, kind in _ours(folder).items()]
    ours.append(_file(launcher, LAUNCHER, "application", version))
    others = [_other(one, folder) for one in components]
    metadata: dict[str, Any] = {"component": product}
    if revision := provenance.get("revision"):
        changed = "-modified" if provenance.get("modified") else ""
        metadata["properties"] = [
            {"name": "vgpu-agent:git-revision", "value": f"{revision}{changed}"}
        ]
        when = datetime.fromisoformat(str(provenance["committed_at"])).astimezone(UTC)
        metadata["timestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": [*ours, *others],
        "dependencies": _dependencies(ours, components),
    }
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, content)}"
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def _ours(folder: Path) -> dict[str, str]:
    """Our own programs and libraries in the frozen folder, and what of the two they are."""
    compiled = sorted(path for path in (folder / OURS).rglob("*") if path.is_file())
    kinds = {
        str(path.relative_to(folder)): "library" if ".so" in path.name else "application"
        for path in compiled
    }
    return {PROGRAM: "application", **kinds}


def _reference(one: Component) -> str:
    return f"{one.inside}/{one.name}" if one.inside else one.name


def _file(path: Path, name: str, kind: str, version: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": f"{NAME}:{name}",
        "name": name,
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": sha256(path)}],
    }


def _other(one: Component, folder: Path) -> dict[str, Any]:
    simple = " " not in one.licence
    about: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(one),
        "name": one.name,
        "licenses": [{"license": {"id": one.licence}} if simple else {"expression": one.licence}],
    }
    if one.version:
        about["version"] = one.version
    if one.purl:
        about["purl"] = one.purl
    if one.name in AS_FILES:
        digest = sha256(folder / AS_FILES[one.name])
        about["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if one.only_in:
        about["properties"] = [{"name": "vgpu-agent:only-in", "value": one.only_in}]
    return about


def _dependencies(
    ours: Sequence[Mapping[str, Any]], components: Sequence[Component]
) -> list[dict[str, Any]]:
    """Our product consists of our files and of what stands alone; the rest is inside of these."""
    launcher = f"{NAME}:{LAUNCHER}"
    carried: dict[str, list[str]] = {NAME: [one["bom-ref"] for one in ours]}
    for one in components:
        carrier = {"": NAME, LAUNCHER: launcher}.get(one.inside, one.inside)
        carried.setdefault(carrier, []).append(_reference(one))
    return [{"ref": ref, "dependsOn": sorted(parts)} for ref, parts in sorted(carried.items())]
