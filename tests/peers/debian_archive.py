"""How do we fetch from Debian without touching the machine's own apt configuration?

The machine already knows where its Debian archive is; a source package only needs the same place
with `deb-src` added. So the entries are read from the machine's apt sources and written, for
bookworm's `main` only, to a private apt directory with its own lists and caches. Nothing here
needs root, and nothing is installed.

Standard library only: build.py uses this before any environment exists.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
COMPONENT = "main"

# apt settings of the machine that say how to reach the archive (proxies, certificates, time-outs);
# what else to download with the lists (icons, translations) and hooks to run is left behind.
_KEPT_SETTING = re.compile(r"^Acquire::(?!IndexTargets|Languages)")
_ONE_LINE = re.compile(
    r"^deb(?:-src)?\s+(?P<options>\[[^\]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)$"
)


class PeersUnavailable(Exception):
    """The real peers cannot be built or run here; the message is one sentence for a person."""


def one_line_entries(text: str) -> list[str]:
    """Entries of a `sources.list` that offer bookworm's main, each as a `deb` and a `deb-src` line.

    Source: sources.list(5), "one-line-style format".
    """
    entries = []
    for line in text.splitlines():
        match = _ONE_LINE.match(line.split("#", 1)[0].strip())
        if match and match["suite"] == SUITE and COMPONENT in match["components"].split():
            rest = f"{match['options'] or ''}{match['uri']} {SUITE} {COMPONENT}"
            entries += [f"deb {rest}", f"deb-src {rest}"]
    return entries


def deb822_entries(text: str) -> list[str]:
    """Stanzas of a `.sources` file that offer bookworm's main, narrowed to it and with sources.

    Source: sources.list(5), "deb822-style format". Other fields (Signed-By above all, which may
    hold a whole key over many lines) are kept as they are.
    """
    entries = []
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields: list[tuple[str, str]] = []
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t") and fields:
                name, value = fields[-1]
                fields[-1] = (name, f"{value}\n{line}")
            elif ":" in line:
                name, value = line.split(":", 1)
                fields.append((name.strip(), value.strip()))
        known = {name.lower(): value for name, value in fields}
        offers = (
            SUITE in known.get("suites", "").split()
            and COMPONENT in known.get("components", "").split()
            and known.get("enabled", "yes").lower() not in ("no", "false", "off", "0")
        )
        if not offers:
            continue
        narrowed = {"types": "deb deb-src", "suites": SUITE, "components": COMPONENT}
        lines = [f"{name}: {narrowed.get(name.lower(), value)}" for name, value in fields]
        entries.append("\n".join(lines))
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class DebianArchive:
    """Debian's archive as this machine reaches it, through an apt directory of our own.

    Every method raises PeersUnavailable with what is missing.
    """

    directory: Path  # absolute; ours alone

    def prepare(self, etc_apt: Path = Path("/etc/apt")) -> None:
        """Write the private apt directory from the machine's sources."""
        for tool in ("apt-get", "apt-config", "dpkg-deb", "gpgv"):
            if shutil.which(tool) is None:
                raise PeersUnavailable(
                    f"the real peers are built from Debian's source package, and this machine has "
                    f"no {tool}; run the cluster tests on Debian {SUITE} or any system with its apt"
                )
        parts = sorted((etc_apt / "sources.list.d").glob("*"))
        listed = [etc_apt / "sources.list", *(p for p in parts if p.suffix == ".list")]
        one_line = [e for p in listed if p.is_file() for e in one_line_entries(_text(p))]
        deb822 = [e for p in parts if p.suffix == ".sources" for e in deb822_entries(_text(p))]
        if not one_line and not deb822:
            raise PeersUnavailable(
                f"no apt source under {etc_apt} offers Debian {SUITE} {COMPONENT}, which holds the "
                f"source of the kubelet the tests use; add one (it may have a low priority)"
            )
        for folder in ("sources", "lists/partial", "cache/archives/partial"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        (self.directory / "sources" / "derived.list").write_text("\n".join(one_line) + "\n")
        (self.directory / "sources" / "derived.sources").write_text("\n\n".join(deb822) + "\n")
        machine = subprocess.run(
            ["apt-config", "dump"], check=True, capture_output=True, text=True
        ).stdout
        kept = [line for line in machine.splitlines() if _KEPT_SETTING.match(line)]
        (self.directory / "apt.conf").write_text(
            "\n".join(
                [
                    'Dir::Etc::Parts "/dev/null";',
                    'Dir::Etc::Main "/dev/null";',
                    'Dir::Etc::SourceList "/dev/null";',
                    f'Dir::Etc::SourceParts "{self.directory / "sources"}";',
                    f'Dir::State::Lists "{self.directory / "lists"}";',
                    f'Dir::Cache "{self.directory / "cache"}";',
                    # The cache is often under a home directory that apt's own user cannot enter.
                    'APT::Sandbox::User "";',
                    'Acquire::Languages "none";',
                    *kept,
                ]
            )
            + "\n"
        )

    def update(self) -> list[str]:
        """The command that fetches the package lists."""
        return ["apt-get", "-q", "update", "--error-on=any"]

    def fetch_upstream_source(self, package: str) -> list[str]:
        """The command that fetches a source package's upstream tarball to the current folder."""
        return ["apt-get", "-q", "source", "--download-only", "--tar-only", package]

    def fetch_binary(self, package: str) -> list[str]:
        """The command that fetches a binary package to the current folder."""
        return ["apt-get", "-q", "download", package]

    @property
    def environ(self) -> dict[str, str]:
        """What to add to the environment of these commands."""
        return {"APT_CONFIG": str(self.directory / "apt.conf"), "LC_ALL": "C.UTF-8"}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
