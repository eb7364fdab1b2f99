"""Make the release: `python -m bundling DIST HOOK WORK [--sign KEY]`, as `build.py dist` does."""

import argparse
import shutil
import sys
import time
from pathlib import Path

from bundling import checksums, floor
from bundling.attestation import statement
from bundling.freeze import frozen
from bundling.image import image
from bundling.licences import third_party
from bundling.provenance import revision, write_record
from bundling.runtime import ROOT, BundleError, made
from bundling.sbom import sbom
from bundling.shipped import Component, components
from bundling.single_file import compiled_launcher, single_file
from bundling.tarball import tarball

sys.path.insert(0, str(ROOT))

from agent.shipped import FOLDERS
from agent.version import VERSION

SHIPPED = tuple(name for name in FOLDERS if any((ROOT / name).rglob("*")))
WEB_PAGE = "agent/web"
FLOOR = (2, 28)  # glibc of RHEL 8, Debian 10 and Ubuntu 20.04's elders
FLOOR_OF_HOOK = (2, 17)  # containers are older than their hosts
NAME = f"vgpu-agent-{VERSION}-linux-x86_64"


def say(text: str) -> None:
    """Tell how far we are."""
    print(f"  {time.monotonic() - BEGAN_S:4.0f} s  {text}", flush=True)  # noqa: T201


BEGAN_S = time.monotonic()


def main(dist: Path, hook_dir: Path, work: Path, key: Path | None) -> int:
    """Make everything; give the exit code."""
    python = Path(sys.executable)
    runtime = made(work / "runtime", python.parent, say)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    say("freezing the agent")
    data = {
        "hook": shipped_hook(hook_dir, work / "hook"),
        **{name: ROOT / name for name in (*SHIPPED, WEB_PAGE)},
        ".": write_record(work / "build.json"),
    }
    folder = frozen(runtime, data, work / "frozen", work / "freeze")
    check_floor(folder)
    parts = components(runtime, work / "freeze", python)
    notices = with_licences(folder, parts)
    launcher = compiled_launcher(runtime, python, work / "launcher")
    say("writing the single file")
    made_files = [single_file(launcher, folder, VERSION, dist / NAME)]
    say("writing the image")
    made_files.append(image(folder, VERSION, revision(), dist / f"{NAME}.oci.tar"))
    bill = sbom(folder, launcher, parts, VERSION, revision())
    made_files.append(dist / f"{NAME}.cdx.json")
    made_files[-1].write_bytes(bill)
    say("writing the tarball")
    more = {"sbom.cdx.json": bill, "THIRD-PARTY.txt": notices}
    made_files.append(tarball(folder, made_files[1], SHIPPED, more, dist / f"{NAME}.tar.gz"))
    (dist / "provenance.json").write_bytes(statement(made_files, VERSION, revision()))
    listing = checksums.write_list(dist)
    if key is not None:
        say("signing")
        checksums.sign(listing, key)
    say("done")
    summary(dist, folder)
    return 0


def with_licences(folder: Path, parts: list[Component]) -> bytes:
    """Put the licences into the frozen folder; give the text about the parts by others."""
    target = folder / "_internal" / "licences"
    target.mkdir()
    shutil.copyfile(ROOT / "LICENSE", target / "LICENSE")
    text = third_party(parts).encode()
    (target / "THIRD-PARTY.txt").write_bytes(text)
    return text


def summary(dist: Path, folder: Path) -> None:
    """Tell what was made, and how large it is."""
    rows = {path.name: path.stat().st_size for path in sorted(dist.iterdir())}
    unpacked = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    for name, size in rows.items():
        told = f"{size / 2**20:8.1f} MiB" if size >= 2**20 else f"{size / 2**10:8.1f} KiB"
        print(f"{told}  {name}")  # noqa: T201
    print(f"The single executable takes {unpacked / 2**20:.1f} MiB when it has unpacked.")  # noqa: T201


def shipped_hook(built: Path, target: Path) -> Path:
    """What of the build is shipped: libraries and the simulated driver, no objects, no stamps."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target, ignore=shutil.ignore_patterns(".*"))
    return target


def check_floor(folder: Path) -> None:
    """Refuse what an old host could not load. Raises BundleError."""
    for need in floor.glibc_needs(folder):
        allowed = FLOOR_OF_HOOK if "hook" in need.path.parts else FLOOR
        if need.glibc > allowed:
            raise BundleError(
                f"{need.path} needs glibc {need.glibc[0]}.{need.glibc[1]}; hosts have "
                f"{allowed[0]}.{allowed[1]} and newer"
            )


def arguments() -> argparse.Namespace:
    """What the caller wants."""
    parser = argparse.ArgumentParser(prog="build.py dist")
    for name, about in (
        ("dist", "where the release goes; what is there is removed"),
        ("hook", "directory of the compiled hook"),
        ("work", "directory for what can be used again"),
    ):
        parser.add_argument(name, type=lambda text: Path(text).resolve(), help=about)
    parser.add_argument("--sign", type=Path, metavar="KEY", help="SSH key that signs SHA256SUMS")
    return parser.parse_args()


if __name__ == "__main__":
    given = arguments()
    try:
        sys.exit(main(given.dist, given.hook, given.work, given.sign))
    except BundleError as error:
        sys.exit(f"build.py dist: {error}")
