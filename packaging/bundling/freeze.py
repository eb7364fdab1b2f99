"""How does the agent become a folder that needs no Python? PyInstaller, with our own runtime.

A folder and never PyInstaller's one-file mode: that one unpacks 40 MB into /tmp at every start,
leaves them there when it is killed, fails where /tmp is noexec, and runs as two processes, of which
the first forwards signals to the second. The one executable that we ship is made from the folder,
by `bundling.single_file`.
"""

import os
import shutil
import subprocess
from pathlib import Path

from bundling.runtime import ROOT, BundleError, Runtime

EPOCH_S = 1_700_000_000  # of every file in the artifact: the same input gives the same bytes

# Found by PyInstaller because something could import them; nothing of ours does.
UNUSED = (
    *("aiohttp", "aiohttp_retry", "multidict", "yarl", "frozenlist", "propcache", "aiosignal"),
    *("kubernetes.aio", "kubernetes.client.models", "kubernetes.client.api", "kubernetes.dynamic"),
    *("kubernetes.stream", "kubernetes.leaderelection", "websocket", "pydantic", "pydantic_core"),
    *("grpc_tools", "setuptools", "pkg_resources", "_distutils_hack", "_pyrepl", "pydoc_data"),
    *("tkinter", "unittest", "lib2to3", "test", "readline", "curses", "sqlite3", "idlelib"),
    *("pygments", "markdown_it", "mdurl"),  # rich shows source code and Markdown with them
    *("tzdata", "win32ctypes", "pynvml_utils", "annotated_types", "typing_inspection"),
)

# The parts of the client package that agent/adapters/kube_config.py imports one by one.
LOADED_BY_NAME = (
    "kubernetes.client.configuration",
    "kubernetes.client.rest",
    "kubernetes.config.incluster_config",
    "kubernetes.config.kube_config",
)


def frozen(runtime: Runtime, data: dict[str, Path], target: Path, work: Path) -> Path:
    """Freeze agent.py into `target`/vgpu-agent with `data` (name inside -> path); give the folder.

    Raises BundleError.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    site = next((runtime.python.parent.parent / "lib").glob("python3.*")) / "site-packages"
    shutil.copy(
        runtime.bootloader, site / "PyInstaller" / "bootloader" / "Linux-64bit-intel" / "run"
    )
    command: list[str | Path] = [
        runtime.python,
        "-m",
        "PyInstaller",
        "--noconfirm",
        "--onedir",
        "--log-level=WARN",
    ]
    command += ["--name=vgpu-agent", f"--distpath={target}", f"--workpath={work}"]
    command += [f"--specpath={work}"]
    command += [f"--add-data={path}:{name}" for name, path in sorted(data.items())]
    command += [f"--hidden-import={module}" for module in LOADED_BY_NAME]
    command += [f"--exclude-module={module}" for module in UNUSED]
    done = subprocess.run(  # noqa: S603 - the runtime's own interpreter
        [*command, ROOT / "agent.py"],
        check=False,
        cwd=ROOT,
        # A fixed hash seed makes PyInstaller's output the same for the same input.
        env=os.environ | {"PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": str(EPOCH_S)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise BundleError(f"PyInstaller failed:\n{done.stderr[-3000:]}")
    folder = target / "vgpu-agent"
    for library in runtime.libraries:  # PyInstaller took this machine's
        shutil.copy(library, folder / "_internal" / library.name)
    for leftover in folder.rglob("*.dist-info"):
        shutil.rmtree(leftover)
    return folder
