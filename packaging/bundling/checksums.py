"""The list of SHA-256 sums, as `sha256sum --check` reads it, and its signature.

A signature needs nothing on the host that verifies it but OpenSSH: `ssh-keygen -Y verify`.
"""

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bundling.runtime import BundleError

NAME = "SHA256SUMS"
NAMESPACE = "vgpu-agent"  # of the signature: one made for something else is none


def sha256(path: Path) -> str:
    """The sum of a file, in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def listed(files: Mapping[str, bytes]) -> bytes:
    """The list for files, by their names."""
    sums = (f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return "".join(sums).encode()


def write_list(folder: Path) -> Path:
    """List every file of a folder in its SHA256SUMS."""
    target = folder / NAME
    paths = sorted(path for path in folder.iterdir() if path.name not in (NAME, f"{NAME}.sig"))
    target.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in paths))
    return target


def sign(listing: Path, key: Path) -> Path:
    """Sign the list with an SSH key, into SHA256SUMS.sig; may ask for the key's passphrase.

    Raises BundleError.
    """
    signature = listing.with_name(f"{listing.name}.sig")
    signature.unlink(missing_ok=True)
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are ours and the key the caller's
            ["ssh-keygen", "-q", "-Y", "sign", "-n", NAMESPACE, "-f", key, listing],  # noqa: S607
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise BundleError("signing needs ssh-keygen; install OpenSSH's client") from None
    if done.returncode:
        raise BundleError(f"signing with {key} failed: {done.stderr.strip()}")
    return signature
