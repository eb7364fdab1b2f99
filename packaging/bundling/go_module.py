"""Is an unpacked Go module what go.sum says?

Go compares the archive when it fetches it. What it has unpacked it takes as it is from then on, and
a module cache is for everything that this user builds.
"""

import base64
import hashlib
from pathlib import Path


def sum_of(folder: Path, called: str) -> str:
    """The sum of an unpacked module, as go.sum has it; `called` is `<path>@<version>`.

    Raises OSError for what cannot be read, ValueError for what no module has. Source: Go,
    golang.org/x/mod/sumdb/dirhash, Hash1.
    """
    files = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is neither a file nor a directory")
        if path.is_file():
            files[f"{called}/{path.relative_to(folder)}"] = path
    listing = "".join(
        f"{hashlib.sha256(files[name].read_bytes()).hexdigest()}  {name}\n"
        for name in sorted(files, key=str.encode)
    )
    return "h1:" + base64.b64encode(hashlib.sha256(listing.encode()).digest()).decode()


def pinned(go_sum: str, called: str) -> str | None:
    """What go.sum says of a module's files; None: nothing."""
    name, _, version = called.partition("@")
    for line in go_sum.splitlines():
        words = line.split()
        if words[:2] == [name, version]:
            return words[2]
    return None
