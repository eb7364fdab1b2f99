"""The build's provenance: an in-toto statement that says which files were made of what, by what.

Source: in-toto attestation framework, Statement v1; SLSA provenance v1.
"""

import json
import platform
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bundling.checksums import sha256
from bundling.freeze import EPOCH_S
from bundling.runtime import PINS, REQUIREMENTS, ROOT

# Everything that decides what is fetched: packages and tools by their hashes.
PINNED = (
    *(REQUIREMENTS / f"{name}.lock" for name in ("run", "hook", "dev", "dist", "frozen")),
    *(PINS / name for name in ("go.mod", "go.sum", "debian/SHA256SUMS")),
)


def statement(files: Sequence[Path], version: str, provenance: Mapping[str, object]) -> bytes:
    """Say of what these files were made, in JSON."""
    subjects = [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in sorted(files)]
    sources: list[dict[str, Any]] = [
        {"name": str(path.relative_to(ROOT)), "digest": {"sha256": sha256(path)}} for path in PINNED
    ]
    if revision := provenance.get("revision"):
        sources.insert(0, {"name": "the tree", "digest": {"gitCommit": revision}})
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:vgpu-agent:build.py-dist:1",
                "externalParameters": {"task": "dist", "version": version, **provenance},
                "internalParameters": {
                    # What of the building machine can be seen in the bytes, or tells of it.
                    "python": platform.python_version(),
                    "zlib": zlib.ZLIB_RUNTIME_VERSION,
                    "source_date_epoch": EPOCH_S,
                },
                "resolvedDependencies": sources,
            },
            "runDetails": {"builder": {"id": "urn:vgpu-agent:build.py"}},
        },
    }
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
