"""How do we get a real kustomize? Compiled once from its Go module, into a cache outside the tree.

`kubectl kustomize` is the same program. What is built is pinned, with everything it needs, by the
hashes in kustomize/go.sum; the Go toolchain is the one of requirements/dist.lock.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

from .build_peers import default_cache
from .debian_archive import PeersUnavailable

__all__ = ["PeersUnavailable", "kustomize"]

PINS = Path(__file__).with_name("kustomize")
MODULE = "sigs.k8s.io/kustomize/kustomize/v5"
BUILD_S = 500


def kustomize() -> Path:
    """The program, built if this machine does not have it yet (a minute).

    Raises:
        PeersUnavailable: one sentence saying what is missing.
    """
    pins = b"".join((PINS / name).read_bytes() for name in ("go.mod", "go.sum"))
    cache = default_cache().with_name("kustomize")
    cache.mkdir(parents=True, exist_ok=True)
    program = cache / f"kustomize-{hashlib.sha256(pins).hexdigest()[:16]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    go = Path(sys.executable).with_name("go")
    if not go.exists():
        raise PeersUnavailable("there is no Go to build kustomize with; `build.py dist` fetches it")
    unfinished = program.with_suffix(".building")
    # go.sum has the hashes, so no other directory of hashes is asked.
    environ = {"GOTOOLCHAIN": "local", "GONOSUMDB": "*", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags=-s -w", "-o", unfinished, MODULE],
        cwd=PINS, env=os.environ | environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise PeersUnavailable(f"building kustomize failed: {lines[-1].strip()}")
    unfinished.rename(program)
