"""The container image: an archive that every tool loads, made without any of them.

One tar holds the same blobs under both of its indexes: OCI's (`index.json`; containerd, skopeo,
podman, buildah) and Docker's (`manifest.json`; `docker load`). Two layers: of glibc what the frozen
agent needs, and the frozen agent. There is no shell in it, no package manager and no /tmp.

Source: OCI image specification 1.0 (image-layout.md, config.md, manifest.md), Docker image
specification 1.2.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bundling import archive
from bundling.freeze import EPOCH_S
from bundling.runtime import ROOT, BundleError, debian_packages

NAME = "vgpu-agent"
# It is on the node or nowhere. A name without a place is completed by every runtime in its own way,
# with registries where it is then looked for; and containerd finds none that it has not completed.
PLACE = "localhost"
HOME = "opt/vgpu-agent"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
LOADER = "ld-linux-x86-64.so.2"
FROM_LIBC6 = (
    *(LOADER, "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"),
    *("libutil.so.1", "libresolv.so.2", "libnss_files.so.2", "libnss_dns.so.2"),
)
DIRECTORIES = (
    *("dev", "proc", "sys", "run", "var", "etc", "etc/ld.so.conf.d", "opt"),  # points to mount at
    *("usr", "usr/lib", "usr/lib64", LIBRARIES),
    *("usr/share", "usr/share/doc", "usr/share/doc/libc6", "usr/share/doc/vgpu-agent"),
)
LINKS = {
    "lib": "usr/lib",
    "lib64": "usr/lib64",
    "var/run": "/run",
    f"usr/lib64/{LOADER}": f"../lib/x86_64-linux-gnu/{LOADER}",  # every program names it by this
}
ETC = {
    "passwd": "root:x:0:0:root:/:/nonexistent\nnobody:x:65534:65534:nobody:/:/nonexistent\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    # NVIDIA's toolkit puts the driver's libraries where Debian keeps them when it finds this file,
    # which is where this libc looks for them even without ld.so.cache.
    "debian_version": "12\n",
    "ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
    "ld.so.conf.d/x86_64-linux-gnu.conf": "/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n",
}
OCI = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of the archive, which is known by its digest."""

    content: bytes
    digest: str  # hexadecimal

    @property
    def path(self) -> str:
        """Where it lies in the archive."""
        return f"blobs/sha256/{self.digest}"

    def described(self, kind: str, **more: object) -> dict[str, Any]:
        """As others refer to it: an OCI content descriptor."""
        digest = f"sha256:{self.digest}"
        return {"mediaType": f"{OCI}.{kind}", "digest": digest, "size": len(self.content), **more}


def blob(content: bytes) -> Blob:
    """Name content by its digest."""
    return Blob(content, hashlib.sha256(content).hexdigest())


def image(folder: Path, version: str, provenance: Mapping[str, object], target: Path) -> Path:
    """Write the archive of an image with the frozen agent in `folder`; give its path.

    `provenance`: of its keys `revision` goes into the labels. Raises BundleError.
    """
    plain = [base_layer(), agent_layer(folder)]
    layers = [blob(archive.gzipped(content)) for content in plain]
    labels = labels_of(version, provenance)
    config = blob(_json(configuration(plain, labels)))
    manifest = blob(
        _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{OCI}.manifest.v1+json",
                "config": config.described("config.v1+json"),
                "layers": [layer.described("layer.v1.tar+gzip") for layer in layers],
                "annotations": labels,
            }
        )
    )
    tag = f"{PLACE}/{NAME}:{version}"
    names = {
        "io.containerd.image.name": tag,
        "org.opencontainers.image.ref.name": version,
    }
    described = manifest.described("manifest.v1+json", annotations=names)
    for_docker = [{"Config": config.path, "RepoTags": [tag], "Layers": [x.path for x in layers]}]
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{OCI}.index.v1+json",
                "manifests": [described],
            }
        ),
        "manifest.json": _json(for_docker),
    }
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as opened:
        archive.directories(opened, ("blobs", "blobs/sha256"))
        for name, content in files.items():
            archive.add_bytes(opened, name, content)
        for part in sorted((config, manifest, *layers), key=lambda part: part.digest):
            archive.add_bytes(opened, part.path, part.content)
    return target


def configuration(layers: list[bytes], labels: Mapping[str, str]) -> dict[str, Any]:
    """How a container of it is run, and what its layers are, uncompressed."""
    created = datetime.fromtimestamp(EPOCH_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": "0:0",  # it makes directories and files of the host that only root may make
            "Entrypoint": [f"/{HOME}/vgpu-agent"],
            "Cmd": ["run"],
            "WorkingDir": "/",
            "Env": [f"PATH=/{HOME}"],
            "ExposedPorts": {"9394/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": dict(labels),
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
        "history": [
            {"created": created, "created_by": made_of}
            for made_of in ("glibc of Debian 12", f"{NAME}, frozen")
        ],
    }


def labels_of(version: str, provenance: Mapping[str, object]) -> dict[str, str]:
    """What it says of itself. Source: OCI image specification 1.0, annotations.md."""
    about = {
        "title": NAME,
        "description": "One program that turns a GPU node into a shared-GPU node",
        "version": version,
        "licenses": "Apache-2.0",
    }
    if revision := provenance.get("revision"):
        changed = "-modified" if provenance.get("modified") else ""
        about["revision"] = f"{revision}{changed}"
    return {f"org.opencontainers.image.{key}": value for key, value in about.items()}


def base_layer() -> bytes:
    """A tar of what the agent needs besides itself. Raises BundleError."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        archive.directories(layer, sorted(DIRECTORIES))
        for name, to in sorted(LINKS.items()):
            archive.add_link(layer, name, to)
        for name, text in sorted(ETC.items()):
            archive.add_bytes(layer, f"etc/{name}", text.encode())
        for package in debian_packages("libc6"):
            for name in FROM_LIBC6:
                library = _member(package, f"./lib/x86_64-linux-gnu/{name}")
                archive.add_bytes(layer, f"{LIBRARIES}/{name}", library, 0o755)
            notice = "usr/share/doc/libc6/copyright"
            archive.add_bytes(layer, notice, _member(package, f"./{notice}"))
    return content.getvalue()


def agent_layer(folder: Path) -> bytes:
    """A tar of the frozen agent and its licence."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as layer:
        archive.add_tree(layer, folder, HOME)
        licence = (ROOT / "LICENSE").read_bytes()
        archive.add_bytes(layer, "usr/share/doc/vgpu-agent/LICENSE", licence)
    return content.getvalue()


def _member(package: tarfile.TarFile, name: str) -> bytes:
    try:
        opened = package.extractfile(name)
    except KeyError:
        opened = None
    if opened is None:
        raise BundleError(f"the package libc6 in packaging/runtime/debian has no file {name}")
    return opened.read()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
