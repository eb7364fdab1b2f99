"""Files that come with this program for others to use: manifests, unit, dashboards, licences.

One executable is all that has to be brought to a place; what kubectl, systemd, Prometheus and
Grafana take is in it and comes out again by `vgpu-agent files`.
"""

from pathlib import Path

from agent.bundle import data_dir
from agent.errors import AgentError

# Named as in the tarball, where the commands of docs/install are typed; from source there are no
# licences, because the texts of the parts by others are gathered with the release.
FOLDERS = (
    "packaging/daemonset",
    "packaging/grafana",
    "packaging/prometheus",
    "packaging/systemd",
    "licences",
)
MANUAL = """\
Lists the files that come with this program: the DaemonSet's manifests, the systemd unit, what there
is for Prometheus and Grafana, licences. Writing leaves those alone that are there and the same, and
refuses if one differs.
"""


class FilesError(AgentError):
    """There is no such file, or it cannot be written; the message says what to do."""


def shipped() -> dict[str, Path]:
    """All of them, by name."""
    top = data_dir()
    return {
        path.relative_to(top).as_posix(): path
        for folder in FOLDERS
        for path in sorted((top / folder).rglob("*"))
        if path.is_file()
    }


def content(name: str) -> bytes:
    """One of them. Raises FilesError."""
    try:
        return shipped()[name].read_bytes()
    except KeyError:
        raise FilesError(f"there is no file {name!r}; `vgpu-agent files` lists them") from None
    except OSError as error:
        raise FilesError(f"{error.filename} cannot be read: {error.strerror}") from error


def unpack(target: Path) -> list[Path]:
    """Write all of them below a directory, which may have them; give those that were not there.

    Raises FilesError before anything is written if one is there that differs, and when the
    directory cannot be written.
    """
    try:
        wanted = {target / name: path.read_bytes() for name, path in shipped().items()}
        missing = [path for path in wanted if not path.exists()]
        for path in wanted.keys() - set(missing):
            if path.read_bytes() != wanted[path]:
                raise FilesError(
                    f"{path} is there and differs, so nothing was written; move it away, or name "
                    "an empty directory"
                )
        for path in missing:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:  # no link that somebody has put there is followed
                file.write(wanted[path])
    except OSError as error:
        raise FilesError(f"{error.filename or target} cannot be used: {error.strerror}") from error
    return missing
