"""Is a CDI file what the published JSON schema says, and what runtimes ask beyond it?"""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
from referencing import Registry, Resource

SCHEMA = Path(__file__).parent / "golden" / "cdi"
KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
STAGES = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}


def check_cdi(text: str) -> dict[str, Any]:
    """Give the document; fails where a container runtime would."""
    document: dict[str, Any] = json.loads(text)
    definitions = Resource.from_contents(
        json.loads((SCHEMA / "defs.json").read_text())
        | {"$schema": "http://json-schema.org/draft-07/schema#"}
    )
    registry: Registry[Any] = Registry().with_resource("defs.json", definitions)
    jsonschema.Draft7Validator(
        json.loads((SCHEMA / "schema.json").read_text()), registry=registry
    ).validate(document)
    assert KIND.fullmatch(document["kind"])
    names = [device["name"] for device in document["devices"]]
    assert len(names) == len(set(names))
    for device in document["devices"]:
        assert NAME.fullmatch(device["name"])
        check_edits(device["containerEdits"])
    return document


def check_edits(edits: dict[str, Any]) -> None:
    assert edits, "a device without edits is refused by runtimes"
    assert all("=" in env and isinstance(env, str) for env in edits.get("env", ()))
    for node in edits.get("deviceNodes", ()):
        assert node["path"].startswith("/dev/")
    for mount in edits.get("mounts", ()):
        assert mount["hostPath"].startswith("/")
        assert mount["containerPath"].startswith("/")
    for hook in edits.get("hooks", ()):
        assert hook["hookName"] in STAGES
        assert hook["path"].startswith("/")
