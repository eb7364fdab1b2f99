"""Reading an image archive as container tools do, independently of what wrote it."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class ImageArchive:
    """An archive with one image, under the indexes of OCI and of Docker."""

    files: dict[str, bytes]

    @classmethod
    def read(cls, path: Path) -> "ImageArchive":
        """Read all of it; a name that comes twice is an error."""
        files: dict[str, bytes] = {}
        with tarfile.open(path) as opened:
            for member in opened:
                file = opened.extractfile(member)
                if file is not None:
                    assert member.name not in files, member.name
                    files[member.name] = file.read()
        return cls(files)

    def json(self, name: str) -> Any:
        """A file that is JSON."""
        return json.loads(self.files[name])

    def blob(self, descriptor: Json) -> bytes:
        """What an OCI descriptor refers to; its size and digest are checked."""
        algorithm, _, digest = descriptor["digest"].partition(":")
        content = self.files[f"blobs/{algorithm}/{digest}"]
        assert len(content) == descriptor["size"]
        assert hashlib.new(algorithm, content).hexdigest() == digest
        return content

    @property
    def described(self) -> Json:
        """The descriptor of the one manifest."""
        [descriptor] = self.json("index.json")["manifests"]
        found: Json = descriptor
        return found

    @property
    def manifest(self) -> Json:
        """OCI's manifest."""
        found: Json = json.loads(self.blob(self.described))
        return found

    @property
    def config(self) -> Json:
        """The image's configuration."""
        found: Json = json.loads(self.blob(self.manifest["config"]))
        return found

    def layers(self) -> Iterator[bytes]:
        """The layers' tars, from the bottom up, held to the configuration's digests."""
        manifest, config = self.manifest, self.config
        for layer, digest in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            content = gzip.decompress(self.blob(layer))
            assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
            yield content

    def members(self) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """What is in the layers, with the content of files."""
        for layer in self.layers():
            with tarfile.open(fileobj=io.BytesIO(layer)) as opened:
                for member in opened:
                    file = opened.extractfile(member) if member.isfile() else None
                    yield member, file.read() if file else b""

    def unpack(self, rootfs: Path) -> None:
        """Make a container's root file system of it."""
        rootfs.mkdir(parents=True)
        for layer in self.layers():
            with tarfile.open(fileobj=io.BytesIO(layer)) as opened:
                opened.extractall(rootfs, filter="fully_trusted")  # noqa: S202 - ours
