"""What all containers share on a real file system: hook library, preload file, lock directory."""

import os
import stat
from pathlib import Path

import pytest

from agent.adapters.caches import HostCaches
from agent.adapters.hook_files import install_hook
from agent.errors import NodeNotReady
from tests.wire.host_directory import make_caches, make_host, mode, needs_root


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return make_host(tmp_path)


@pytest.fixture
def caches(host: Path, tmp_path: Path) -> HostCaches:
    return make_caches(tmp_path)


def test_prepare(caches: HostCaches, host: Path, tmp_path: Path) -> None:
    files = caches.prepare()
    assert files.library == host / "libvgpu.so"
    assert files.preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert mode(files.preload) == 0o644
    assert files.lock_dir == tmp_path / "vgpulock"
    assert mode(files.lock_dir) == 0o1777
    assert (files.license, files.validator, files.device_nodes) == (None, None, ())


def test_prepare_changes_nothing_that_is_right(caches: HostCaches) -> None:
    preload = caches.prepare().preload
    before = preload.stat()
    caches.prepare()
    assert preload.stat().st_ino == before.st_ino
    assert preload.stat().st_mtime_ns == before.st_mtime_ns


def test_a_preload_file_of_other_content_is_replaced_not_rewritten(
    caches: HostCaches, host: Path
) -> None:
    (host / "ld.so.preload").write_text("/elsewhere/libvgpu.so")
    with (host / "ld.so.preload").open() as mapped:  # a container has it mounted
        preload = caches.prepare().preload
        assert mapped.read() == "/elsewhere/libvgpu.so"
    assert preload.read_text() == "/usr/local/vgpu/libvgpu.so\n"


def test_a_preload_file_that_is_a_link(caches: HostCaches, host: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    (host / "ld.so.preload").symlink_to(tmp_path / "victim")
    with pytest.raises(NodeNotReady, match="is a link"):
        caches.prepare()
    assert (tmp_path / "victim").read_text() == "x"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        pytest.param(["libvgpu.so", "libvgpu.so.2"], "libvgpu.so.2", id="the version's own"),
        pytest.param(["libvgpu.so", "libvgpu.so.1"], "libvgpu.so", id="the one without version"),
    ],
)
def test_the_library(host: Path, tmp_path: Path, names: list[str], found: str) -> None:
    for name in names:
        (host / name).write_bytes(b"hook")
    caches = HostCaches(host, lock_dir=tmp_path / "l", versioned_library="libvgpu.so.2")
    assert caches.prepare().library == host / found


@pytest.mark.parametrize("content", [None, b""])
def test_no_library_no_grant(caches: HostCaches, host: Path, content: bytes | None) -> None:
    (host / "libvgpu.so").unlink()
    if content is not None:  # half copied
        (host / "libvgpu.so").write_bytes(content)
    with pytest.raises(NodeNotReady, match=r"has no .*libvgpu\.so, without which limits"):
        caches.prepare()


def test_license_and_device_nodes(caches: HostCaches, host: Path, tmp_path: Path) -> None:
    (host / "license").write_text("x")
    (tmp_path / "root" / "dev").mkdir(parents=True)
    (tmp_path / "root" / "dev" / "nvidiactl").touch()
    files = caches.prepare()
    assert files.license == host / "license"
    assert files.validator == host / "vgpuvalidator"
    assert files.device_nodes == ("/dev/nvidiactl",)


def test_a_lock_directory_that_is_a_link(caches: HostCaches, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (tmp_path / "vgpulock").symlink_to(victim)
    with pytest.raises(NodeNotReady, match="is a link"):
        caches.prepare()
    assert mode(victim) == 0o700


@needs_root
def test_a_lock_directory_of_somebody_else(caches: HostCaches, tmp_path: Path) -> None:
    """Where anybody could have made it, as in /tmp."""
    tmp_path.chmod(0o1777)
    squatted = tmp_path / "vgpulock"
    squatted.mkdir(mode=0o700)
    os.chown(squatted, 12345, -1)
    with pytest.raises(NodeNotReady, match="belongs to user 12345"):
        caches.prepare()
    assert mode(squatted) == 0o700


def test_a_lock_directory_without_the_sticky_bit_gets_it(
    caches: HostCaches, tmp_path: Path
) -> None:
    (tmp_path / "vgpulock").mkdir()
    (tmp_path / "vgpulock").chmod(0o777)  # as HAMi makes it
    caches.prepare()
    assert mode(tmp_path / "vgpulock") == 0o1777


# --- the hook ------------------------------------------------------------------------------------


def test_install_hook(tmp_path: Path) -> None:
    source, host = tmp_path / "built.so", tmp_path / "usr" / "vgpu"
    source.write_bytes(b"one")
    first = install_hook(source, host, "1.0")
    assert first.parent == host
    assert first.name.startswith("libvgpu.so.1.0-")
    assert first.read_bytes() == b"one"
    assert (mode(first), mode(host)) == (0o755, 0o750)
    caches = HostCaches(host, lock_dir=tmp_path / "l", versioned_library=first.name)
    assert caches.prepare().library == first


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o750), (0o711, 0o710), (0o750, 0o750), (0o700, 0o700)]
)
def test_no_other_user_of_the_host_is_let_in(tmp_path: Path, before: int, after: int) -> None:
    source, host = tmp_path / "built.so", tmp_path / "vgpu"
    source.write_bytes(b"one")
    host.mkdir()
    host.chmod(before)
    install_hook(source, host, "1.0")
    assert mode(host) == after


def test_install_hook_into_a_directory_that_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an agent that is not root has it; doctor tells."""
    source, host = tmp_path / "built.so", tmp_path / "vgpu"
    source.write_bytes(b"one")
    host.mkdir(mode=0o755)
    real = os.fchmod

    def refused(fd: int, to: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise PermissionError
        real(fd, to)

    monkeypatch.setattr(os, "fchmod", refused)
    assert install_hook(source, host, "1.0").read_bytes() == b"one"


def test_install_hook_after_a_crash_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask, what was made so far is nothing that the next start must refuse."""
    source, host = tmp_path / "built.so", tmp_path / "vgpu"
    source.write_bytes(b"one")
    before = os.umask(0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fchmod", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                install_hook(source, host, "1.0")
    finally:
        os.umask(before)
    assert install_hook(source, host, "1.0").read_bytes() == b"one"


def test_installing_again_touches_nothing(tmp_path: Path) -> None:
    source, host = tmp_path / "built.so", tmp_path / "vgpu"
    source.write_bytes(b"one")
    first = install_hook(source, host, "1.0")
    inode = first.stat().st_ino
    assert install_hook(source, host, "1.0") == first
    assert first.stat().st_ino == inode
    source.write_bytes(b"two")
    second = install_hook(source, host, "1.0")
    assert second != first
    assert first.read_bytes() == b"one"  # containers have it mapped
    assert sorted(path.name for path in host.iterdir()) == sorted([first.name, second.name])


def test_a_damaged_library_is_replaced_not_rewritten(tmp_path: Path) -> None:
    source, host = tmp_path / "built.so", tmp_path / "vgpu"
    source.write_bytes(b"one")
    first = install_hook(source, host, "1.0")
    first.write_bytes(b"damaged")
    inode = first.stat().st_ino
    assert install_hook(source, host, "1.0").read_bytes() == b"one"
    assert first.stat().st_ino != inode


@pytest.mark.parametrize("content", [None, b""])
def test_no_source(tmp_path: Path, content: bytes | None) -> None:
    source = tmp_path / "built.so"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(NodeNotReady):
        install_hook(source, tmp_path / "vgpu", "1.0")
    assert not (tmp_path / "vgpu").exists()
