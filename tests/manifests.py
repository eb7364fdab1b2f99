"""The manifests that are shipped, as they are and as kustomize builds them."""

import itertools
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from peers.kustomize_tool import kustomize

DAEMONSET = Path(__file__).resolve().parents[1] / "packaging" / "daemonset"
BASE = DAEMONSET / "base"
PLAIN = sorted(path for path in BASE.glob("*.yaml") if path.name != "kustomization.yaml")
OVERLAYS = sorted(path.parent for path in DAEMONSET.glob("*/**/kustomization.yaml")
                  if path.parent.parent.name == "overlays")  # fmt: skip
COMPONENTS = sorted(path.parent for path in DAEMONSET.glob("components/*/kustomization.yaml"))


def subsets(counts: Iterable[int]) -> Iterator[tuple[Path, ...]]:
    """Components, so many of them each time."""
    for count in counts:
        yield from itertools.combinations(COMPONENTS, count)


# The base with any of them; an overlay with none, with each, and with all.
SOME = sorted({0, 1, len(COMPONENTS)})
CHOICES = [
    *((BASE, chosen) for chosen in subsets(range(len(COMPONENTS) + 1))),
    *((top, chosen) for top in OVERLAYS for chosen in subsets(SOME)),
]

Manifest = dict[str, Any]


def name_of(choice: tuple[Path, tuple[Path, ...]]) -> str:
    """For people."""
    top, chosen = choice
    return " + ".join(path.name for path in (top, *chosen))


def read(text: str) -> list[Manifest]:
    """The objects of a file."""
    return [document for document in yaml.safe_load_all(text) if document]


def plain() -> list[Manifest]:
    """The base without kustomize, as `kubectl apply -f` reads it."""
    return [document for path in PLAIN for document in read(path.read_text())]


def built(folder: Path) -> list[Manifest]:
    """What `kustomize build` makes of a folder. Raises PeersUnavailable where there is none."""
    done = subprocess.run(
        [kustomize(), "build", folder], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def combined(choice: tuple[Path, tuple[Path, ...]], work: Path) -> list[Manifest]:
    """The same for an overlay with components, put together as the instructions say."""
    top, chosen = choice
    here = work / "combined"
    here.mkdir()
    text = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(top, here.resolve())],
        "components": [os.path.relpath(path, here.resolve()) for path in chosen],
    }
    (here / "kustomization.yaml").write_text(yaml.safe_dump(text))
    return built(here)


def only(kind: str, manifests: list[Manifest]) -> Manifest:
    """The one object of a kind."""
    [found] = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def container_of(manifests: list[Manifest]) -> Manifest:
    """The agent's container."""
    [container] = only("DaemonSet", manifests)["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found
