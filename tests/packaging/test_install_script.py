"""install.sh and uninstall.sh: what they refuse, and what they hand to the program."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "packaging" / "tarball"
SHELLS = [shell for shell in ("dash", "bash", "sh") if shutil.which(shell)]


class Release:
    """An unpacked release, and a host as `uname` and `getconf` tell of it."""

    def __init__(self, root: Path) -> None:
        self.folder, self.tools = root / "a release", root / "tools"
        self.tools.mkdir()
        (self.folder / "vgpu-agent").mkdir(parents=True)
        self.program("vgpu-agent/vgpu-agent", 'printf "<%s>" "$@"; exit 7')
        for script in ("install.sh", "uninstall.sh"):
            shutil.copy(SCRIPTS / script, self.folder)
        self.tool("uname", "echo x86_64")
        self.tool("getconf", "echo glibc 2.28")
        for tool in ("dirname", "sha256sum"):
            (self.tools / tool).symlink_to(str(shutil.which(tool)))

    def program(self, name: str, text: str) -> None:
        self._script(self.folder / name, text)

    def tool(self, name: str, text: str) -> None:
        self._script(self.tools / name, text)

    def _script(self, path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, shell: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(shutil.which(shell)), self.folder / script, *arguments],
            capture_output=True, text=True, check=False, env={"PATH": str(self.tools)}, cwd="/",
        )  # fmt: skip


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("script", ["install", "uninstall"])
def test_arguments_and_exit_code_are_passed_on(release: Release, shell: str, script: str) -> None:
    done = release.run(shell, f"{script}.sh", "--root", "/a b")
    assert done.stdout == f"<{script}><--root></a b>"
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("tool", "text", "said"),
    [
        pytest.param("uname", "echo aarch64", "this is a aarch64 host", id="another architecture"),
        pytest.param("getconf", "echo glibc 2.17", "glibc 2.17", id="an old glibc"),
        pytest.param("getconf", "exit 1", "no glibc", id="musl"),
        pytest.param("getconf", "echo", "no glibc", id="an answer without a version"),
    ],
)
def test_a_host_that_does_not_fit_is_refused(
    release: Release, tool: str, text: str, said: str
) -> None:
    release.tool(tool, text)
    done = release.run(SHELLS[0], "install.sh")
    assert done.returncode == 1
    assert done.stderr.startswith("install.sh: ")
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("version", ["2.28", "2.36", "2.100", "2.31.9000", "3.0"])
def test_newer_hosts_fit(release: Release, version: str) -> None:
    release.tool("getconf", f"echo glibc {version}")
    assert release.run(SHELLS[0], "install.sh").returncode == 7


def test_a_damaged_release_is_refused(release: Release) -> None:
    sums = subprocess.run(
        ["sha256sum", "vgpu-agent/vgpu-agent"],
        cwd=release.folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (release.folder / "SHA256SUMS").write_text(sums)
    assert release.run(SHELLS[0], "install.sh").returncode == 7
    release.program("vgpu-agent/vgpu-agent", "exit 7; # damaged")
    done = release.run(SHELLS[0], "install.sh")
    assert done.returncode == 1
    assert "damaged" in done.stderr
