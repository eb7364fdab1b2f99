"""Is a manifest what Kubernetes' OpenAPI schema says? Strictly: a field that it does not know fails.

The schema is that of the `kubernetes` package, whose models are generated from the OpenAPI document
of the newest Kubernetes and are installed anyway, so that nothing is fetched for it. What the
document leaves open (quantities, enumerations, which fields go together) is for a real API server.

Importing all models takes seconds and 100 MiB, and the agent's own import of that package must find
it untouched, so it happens in a process of its own: `with schema() as check: check(manifest)`.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

KINDS = {
    ("apps/v1", "DaemonSet"): "V1DaemonSet",
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): "V1ClusterRole",
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): "V1ClusterRoleBinding",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("v1", "ConfigMap"): "V1ConfigMap",
    ("v1", "Pod"): "V1Pod",
}

Check = Callable[[Mapping[str, Any]], list[str]]


@contextmanager
def schema() -> Iterator[Check]:
    """A function that says what is wrong with a manifest, one sentence each."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asks, answers = process.stdin, process.stdout

    def check(manifest: Mapping[str, Any]) -> list[str]:
        asks.write(json.dumps(manifest) + "\n")
        asks.flush()
        objections: list[str] = json.loads(answers.readline())
        return objections

    try:
        yield check
    finally:
        process.communicate(timeout=60)


def objections(manifest: Mapping[str, Any]) -> list[str]:
    """What is wrong with a manifest; in a process that may import the whole package."""
    import kubernetes.client as models
    from pydantic import ValidationError

    kind = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
    if kind not in KINDS:
        return [f"nobody knows {kind[1]} of {kind[0]}"]
    try:
        getattr(models, KINDS[kind]).model_validate(manifest)
    except ValidationError as error:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
    return []


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(objections(json.loads(line))) + "\n")
        sys.stdout.flush()
