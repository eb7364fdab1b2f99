"""Where does what lie on a host? Paths are as the host sees them, whatever `--root` says."""

import re
from dataclasses import dataclass
from pathlib import Path

from agent.errors import AgentError

UNIT = "vgpu-agent.service"
PROGRAM = "vgpu-agent"
DEFAULT_PREFIX = Path("/opt/vgpu-agent")
# In a frozen folder: the unit and the form of the environment file.
DATA = Path("_internal/packaging/systemd")
TEMPORARY, DOOMED = ".vgpu-agent-tmp", ".old"

_PREFIX = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9_.-]*){1,16}", re.ASCII)
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~-]{0,62}-[0-9a-f]{16}", re.ASCII)
_EXEC_START = re.compile(r"^ExecStart=(/\S+)/current/vgpu-agent run$", re.ASCII | re.MULTILINE)
_SETTING = re.compile(r"^Environment=([A-Z_]+)=(\S*)$", re.ASCII | re.MULTILINE)


class InstallError(AgentError):
    """It is not installed as was asked for; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of an installation; `prefix` holds a folder for each version."""

    prefix: Path = DEFAULT_PREFIX

    etc = Path("/etc/vgpu-agent")
    environment = Path("/etc/vgpu-agent/vgpu-agent.env")
    new_environment = Path("/etc/vgpu-agent/vgpu-agent.env.new")
    unit = Path("/etc/systemd/system") / UNIT
    wanted = Path("/etc/systemd/system/multi-user.target.wants") / UNIT
    link = Path("/usr/local/bin") / PROGRAM

    @property
    def current(self) -> Path:
        """Leads to the folder of the version in use."""
        return self.prefix / "current"

    @property
    def previous(self) -> Path:
        """Leads to the folder of the version before."""
        return self.prefix / "previous"

    @property
    def trying(self) -> Path:
        """Leads to the folder in use until it has come up: meanwhile the one before is wanted."""
        return self.prefix / "trying"

    @property
    def program(self) -> Path:
        """What the unit starts."""
        return self.current / PROGRAM

    def unit_text(self, shipped: bytes) -> bytes:
        """The unit for this prefix."""
        return shipped.replace(f"{DEFAULT_PREFIX}/".encode(), f"{self.prefix}/".encode())


def checked_prefix(text: str) -> Path:
    """A prefix that can stand in a unit as it is. Raises InstallError."""
    if not _PREFIX.fullmatch(text):
        raise InstallError(
            f"--prefix {text!a} cannot be: give an absolute path of letters, digits, dots, dashes "
            "and underscores, without .. and without a slash at its end"
        )
    return Path(text)


def prefix_of(unit: bytes) -> Path | None:
    """The prefix that a unit of ours was written for; None: it is not ours."""
    found = _EXEC_START.search(unit.decode("utf-8", "replace"))
    return Path(found[1]) if found and _PREFIX.fullmatch(found[1]) else None


def settings_of(unit: bytes) -> dict[str, str]:
    """The settings that a unit of ours has; the environment file's come before them."""
    return dict(_SETTING.findall(unit.decode("utf-8", "replace")))


def is_folder_name(name: str) -> bool:
    """Whether a version's folder could be called so: `<version>-<digest>`."""
    return bool(_FOLDER.fullmatch(name))


def temporary(path: Path) -> Path:
    """The name under which a file, link or folder is made before it is put in its place."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def doomed(path: Path) -> Path:
    """The name under which a folder is emptied, so that under its own it is whole or not there."""
    return path.with_name(f".{path.name}{DOOMED}{TEMPORARY}")


def made_or_doomed(name: str) -> str:
    """What was being made or emptied under such a name; empty: it is no such name."""
    if not (name.startswith(".") and name.endswith(TEMPORARY)):
        return ""
    return name[1 : -len(TEMPORARY)].removesuffix(DOOMED)
