"""install.sh and uninstall.sh: what they refuse, and what they hand to the program."""

import os
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
        for tool in ("dirname", "readlink", "sha256sum"):
            (self.tools / tool).symlink_to(str(shutil.which(tool)))

    def program(self, name: str, text: str) -> None:
        self._script(self.folder / name, text)

    def tool(self, name: str, text: str) -> None:
        self._script(self.tools / name, text)

    def _script(self, path: Path, text: str) -> None:
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def list_sums(self) -> None:
        names = [p.relative_to(self.folder) for p in self.folder.rglob("*") if p.is_file()]
        sums = subprocess.run(
            ["sha256sum", *names], cwd=self.folder, capture_output=True, text=True, check=True
        )
        (self.folder / "SHA256SUMS").write_text(sums.stdout)

    def run(
        self, shell: str, script: str, *arguments: str, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(shutil.which(shell)), (folder or self.folder) / script, *arguments],
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


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
def test_a_damaged_release_is_refused(
    release: Release, tmp_path: Path, shell: str, linked: bool
) -> None:
    folder = release.folder
    if linked:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "install.sh").symlink_to(release.folder / "install.sh")
    release.list_sums()
    done = release.run(shell, "install.sh", "--x", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (7, "<install><--x>", "")
    release.program("vgpu-agent/vgpu-agent", "exit 7; # damaged")
    done = release.run(shell, "install.sh", folder=folder)
    assert done.returncode == 1
    assert "damaged" in done.stderr


def test_without_a_list_it_is_said_that_nobody_checks(release: Release) -> None:
    done = release.run(SHELLS[0], "install.sh")
    assert done.returncode == 7
    assert "has no SHA256SUMS" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "name", ["_internal/zzz.so", "_internal/a b/.hidden", "x", "..y", "_internal/install.sh"]
)
def test_a_file_that_is_not_of_the_release_is_not_installed(
    release: Release, shell: str, name: str
) -> None:
    (release.folder / "vgpu-agent/_internal/a b").mkdir(parents=True)
    (release.folder / "vgpu-agent/_internal/a b/listed").write_text("x")
    release.list_sums()
    assert release.run(shell, "install.sh").returncode == 7
    (release.folder / "vgpu-agent" / name).write_text("evil")
    done = release.run(shell, "install.sh")
    assert done.returncode == 1
    assert f"vgpu-agent/{name} is no file of this release" in done.stderr


def test_a_link_that_is_not_of_the_release_is_not_followed(release: Release) -> None:
    release.list_sums()
    (release.folder / "vgpu-agent/more").symlink_to("/etc")
    done = release.run(SHELLS[0], "install.sh")
    assert "vgpu-agent/more is no file of this release" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_where_nothing_can_be_executed_it_says_so(release: Release) -> None:
    release.list_sums()
    script = (
        'mount --bind "$1" "$1" && mount -o remount,bind,noexec "$1" && exec sh "$1/install.sh"'
    )
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            release.folder,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"mounting is not allowed here: {done.stderr}")
    assert done.returncode == 1
    assert "mounted noexec" in done.stderr.splitlines()[-1]
