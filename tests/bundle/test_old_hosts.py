"""The release on the oldest hosts: roots of an old glibc and nothing else, where nothing may be written.

Debian 11's glibc is kept beside this file, because it will not be served for ever. The oldest that
we promise, 2.28, is served nowhere that we reach, so Debian 11's is also tried without what is newer
in it (see older_glibc). Packages of others, such as those of Debian 10, are tried, too: put them
into the directory that VGPU_TEST_LIBC6_DIR names.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bare_host import BareHost
from bundling.__main__ import FLOOR
from bundling.floor import glibc_needs
from bundling.runtime import PINS
from older_glibc import take_newer_away

from agent.version import VERSION

Version = tuple[int, int]
HOSTS = Path(__file__).parent / "hosts"
DEBIAN_11 = next(HOSTS.glob("libc6_2.31-*.deb"))
GIVEN = os.environ.get("VGPU_TEST_LIBC6_DIR")
PACKAGES = [
    DEBIAN_11,
    *sorted((PINS / "debian").glob("libc6_*.deb")),
    *(sorted(Path(GIVEN).glob("libc6_*.deb")) if GIVEN else ()),
]
# Asks for something of glibc 2.30: by its version, or of dlsym when it runs.
NEWER = {
    "by version": "int gettid(void); int main(void) { return gettid() == 0; }",
    "by dlsym": """
        #define _GNU_SOURCE
        #include <dlfcn.h>
        int main(void) { return !dlsym(RTLD_DEFAULT, "getpid") + 2 * !dlsym(RTLD_DEFAULT, "gettid"); }
    """,
}
SINGLE_FILE, FOLDER = "/programs/single", "/programs/vgpu-agent/vgpu-agent"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: needs root"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def programs(
    single_file: Path, frozen_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Both shapes, in one directory that cannot be written."""
    folder = tmp_path_factory.mktemp("programs")
    shutil.copyfile(single_file, folder / "single")
    (folder / "single").chmod(0o755)
    shutil.copytree(frozen_folder, folder / "vgpu-agent")
    return folder


def glibc(package: Path) -> str:
    return package.name.split("_")[1].split("-")[0]


def made_host(package: Path, as_old_as: Version | None, root: Path, programs: Path) -> BareHost:
    if package.parent == HOSTS:
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        assert f"{digest}  {package.name}" in (HOSTS / "SHA256SUMS").read_text().splitlines()
    host = BareHost.made(package, root, programs)
    if as_old_as:
        take_newer_away(root / "lib" / "x86_64-linux-gnu", as_old_as)
    return host


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((package, None), id=f"glibc-{glibc(package)}") for package in PACKAGES),
        pytest.param((DEBIAN_11, FLOOR), id="glibc-2.31-as-2.28"),
    ],
)
def host(
    request: pytest.FixtureRequest, programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> BareHost:
    return made_host(*request.param, tmp_path_factory.mktemp("host"), programs)


@pytest.mark.parametrize("program", [SINGLE_FILE, FOLDER], ids=["single file", "folder"])
def test_it_tells_its_version_and_writes_nothing(host: BareHost, program: str) -> None:
    before = host.files()
    done = host.run(program, "version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vgpu-agent {VERSION}\n", "")
    assert host.files() == before


@pytest.mark.parametrize("program", [SINGLE_FILE, FOLDER], ids=["single file", "folder"])
def test_the_demo_passes(host: BareHost, program: str) -> None:
    """With the hook in real processes, and whatever the agent loads: gRPC, TLS, YAML, NVML."""
    done = host.run(program, "demo", "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert json.loads(done.stdout)["passed"] is True


@pytest.mark.parametrize(
    ("as_old_as", "how", "code"),
    [
        pytest.param(None, "by version", 0, id="2.31, by version"),
        pytest.param(None, "by dlsym", 0, id="2.31, by dlsym"),
        pytest.param((2, 30), "by version", 0, id="as 2.30, by version"),
        pytest.param((2, 28), "by version", 1, id="as 2.28, by version"),
        pytest.param((2, 28), "by dlsym", 2, id="as 2.28, by dlsym"),
    ],
)
def test_what_an_older_glibc_lacks_is_not_found(
    as_old_as: Version | None, how: str, code: int, tmp_path: Path
) -> None:
    """That the root which stands for glibc 2.28 can refuse anything at all."""
    (programs := tmp_path / "programs").mkdir()
    (source := tmp_path / "newer.c").write_text(NEWER[how])
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.31", source]
    subprocess.run([*command, "-o", programs / "newer", "-ldl"], check=True)
    host = made_host(DEBIAN_11, as_old_as, tmp_path / "root", programs)
    done = host.run("/programs/newer")
    assert done.returncode == code, done.stderr
    assert ("version `GLIBC_2.30' not found" in done.stderr) is (code == 1)


def test_what_is_asked_of_it_is_told_by_readelf(frozen_folder: Path) -> None:
    """The check that refuses a release for too new a glibc sees what another tool sees."""
    if shutil.which("readelf") is None:
        pytest.skip("no readelf to compare with")
    needs = {need.path: need.glibc for need in glibc_needs(frozen_folder)}
    assert len(needs) > 10
    for path in (p for p in frozen_folder.rglob("*") if p.is_file()):
        with path.open("rb") as opened:
            if opened.read(4) != b"\x7fELF":
                continue
        told = subprocess.run(["readelf", "-VW", path], capture_output=True, text=True, check=True)
        asked = told.stdout.partition("Version needs section")[2]
        versions = {(int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", asked)}
        assert needs.get(path) == (max(versions) if versions else None), path
    assert max(needs.values()) <= FLOOR
