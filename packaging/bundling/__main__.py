"""Make the release in DIST: `python -m bundling DIST HOOK_DIR WORK`, as `build.py dist` does."""

import hashlib
import shutil
import sys
import time
from pathlib import Path

from bundling import floor
from bundling.freeze import frozen
from bundling.image import image
from bundling.provenance import revision, write_record
from bundling.runtime import ROOT, BundleError, made
from bundling.single_file import compiled_launcher, single_file

sys.path.insert(0, str(ROOT))

from agent.version import VERSION

FLOOR = (2, 28)  # glibc of RHEL 8, Debian 10 and Ubuntu 20.04's elders
FLOOR_OF_HOOK = (2, 17)  # containers are older than their hosts
NAME = f"vgpu-agent-{VERSION}-linux-x86_64"


def say(text: str) -> None:
    """Tell how far we are."""
    print(f"  {time.monotonic() - BEGAN_S:4.0f} s  {text}", flush=True)  # noqa: T201


BEGAN_S = time.monotonic()


def main(dist: Path, hook_dir: Path, work: Path) -> int:
    """Make everything; give the exit code."""
    tools = Path(sys.executable).parent
    runtime = made(work / "runtime", tools, say)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    say("freezing the agent")
    data = {
        "hook": shipped_hook(hook_dir, work / "hook"),
        "systemd": ROOT / "packaging" / "systemd",
        ".": write_record(work / "build.json"),
    }
    folder = frozen(runtime, data, work / "frozen", work / "freeze")
    check_floor(folder)
    say("writing the single file")
    launcher = compiled_launcher(runtime, tools / "python", work / "launcher")
    single_file(launcher, folder, VERSION, dist / NAME)
    say("writing the image")
    image(folder, VERSION, revision(), dist / f"{NAME}.oci.tar")
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(dist.iterdir())
    )
    (dist / "SHA256SUMS").write_text(sums)
    say("done")
    for path in sorted(dist.iterdir()):
        print(f"{path.stat().st_size / 2**20:8.1f} MiB  {path.name}")  # noqa: T201
    return 0


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


if __name__ == "__main__":
    try:
        sys.exit(main(*(Path(argument).resolve() for argument in sys.argv[1:4])))
    except BundleError as error:
        sys.exit(f"build.py dist: {error}")
