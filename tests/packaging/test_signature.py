"""The signature of a release, made and verified as docs/install/verify.md says."""

import subprocess
from pathlib import Path

import pytest
from bundling import checksums
from bundling.runtime import BundleError
from install_page import PAGES, lines

IDENTITY = "vgpu-agent"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", IDENTITY, "-f", path]
    subprocess.run(words, check=True)
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    (folder := tmp_path / "release").mkdir()
    (folder / "vgpu-agent").write_text("a program")
    checksums.write_list(folder)
    return folder


def verified(release: Path, key: Path) -> bool:
    """As the page says to a user, who has the public key from elsewhere."""
    public = key.with_suffix(".pub").read_text()
    (release / "allowed_signers").write_text(f"{IDENTITY} {public}")
    typed = [line for line in lines(PAGES / "verify.md") if not line.startswith("python3 build.py")]
    assert [line.split()[0] for line in typed] == ["ssh-keygen", "sha256sum"]
    codes = [
        subprocess.run(["sh", "-c", line], cwd=release, capture_output=True, check=False).returncode
        for line in typed
    ]
    (release / "allowed_signers").unlink()
    return codes == [0, 0]


def test_a_signed_release_is_taken(release: Path, key: Path) -> None:
    assert checksums.sign(release / "SHA256SUMS", key) == release / "SHA256SUMS.sig"
    assert verified(release, key)


def test_it_can_be_signed_again(release: Path, key: Path) -> None:
    checksums.sign(release / "SHA256SUMS", key)
    (release / "vgpu-agent").write_text("a newer program")
    checksums.sign(checksums.write_list(release), key)
    assert verified(release, key)
    assert "sig" not in (release / "SHA256SUMS").read_text()


@pytest.mark.parametrize("tampered", ["vgpu-agent", "SHA256SUMS", "SHA256SUMS.sig"])
def test_a_changed_file_is_refused(release: Path, key: Path, tampered: str) -> None:
    checksums.sign(release / "SHA256SUMS", key)
    content = bytearray((release / tampered).read_bytes())
    content[len(content) // 2] ^= 1
    (release / tampered).write_bytes(content)
    assert not verified(release, key)


def test_a_list_made_for_a_changed_file_is_refused(release: Path, key: Path) -> None:
    checksums.sign(release / "SHA256SUMS", key)
    (release / "vgpu-agent").write_text("another program")
    checksums.write_list(release)
    assert not verified(release, key)


def test_the_key_of_another_is_refused(release: Path, key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    checksums.sign(release / "SHA256SUMS", other)
    assert not verified(release, key)


def test_a_key_that_is_none_is_told(release: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"signing with .*missing"):
        checksums.sign(release / "SHA256SUMS", tmp_path / "missing")
