"""What of others is in the release, in which version, under which licence, with which notices?

Packages from PyPI: those of which PyInstaller took a file, as its own lists say. What CPython and
grpcio carry inside is known by what they tell of themselves; where they tell no version, none is
made up. Notices are those that come with a part; packaging/licences has them of what comes as
machine code only, and tells where each is from.
"""

import ast
import csv
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from bundling.runtime import PINS, ROOT, BundleError, Runtime, debian_packages

NOTICES = ROOT / "packaging" / "licences"
FULL_TEXTS = ("GPL-3.0", "LGPL-2.1", "MPL-2.0")  # which notices refer to

# Licences as SPDX expressions, where a package's metadata uses other words.
SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
}
BOOTLOADER = "GPL-2.0-or-later WITH Bootloader-exception AND Apache-2.0 AND Zlib"

# Tells, of what CPython carries, the versions that can be had from it.
ASK_PYTHON = """
import json, platform, pyexpat, ssl, zlib, decimal, _zstd, _sqlite3, _curses
print(json.dumps({
    "cpython": platform.python_version(), "openssl": ssl.OPENSSL_VERSION.split()[1],
    "zlib": zlib.ZLIB_RUNTIME_VERSION, "expat": pyexpat.EXPAT_VERSION.split("_")[1],
    "mpdecimal": decimal.__libmpdec_version__, "zstd": _zstd.zstd_version,
    "sqlite": _sqlite3.sqlite_version, "ncurses": "%d.%d" % _curses.ncurses_version[:2],
}))
"""
LIBYAML = "import yaml._yaml; print(yaml._yaml.get_version_string())"
# Name -> licence. The versions of those that ASK_PYTHON does not know stay open.
IN_CPYTHON = {
    "bzip2": "bzip2-1.0.6",
    "expat": "MIT",
    "libedit": "BSD-3-Clause",
    "libffi": "MIT",
    "libuuid": "BSD-3-Clause",
    "mpdecimal": "BSD-2-Clause",
    "ncurses": "X11-distribute-modifications-variant",
    "openssl": "Apache-2.0",
    "sqlite": "blessing",
    "xz": "0BSD",
    "zlib": "Zlib",
    "zstd": "BSD-3-Clause",
}
IN_GRPCIO = {
    "abseil": "Apache-2.0",
    "address_sorting": "BSD-3-Clause",
    "boringssl": "Apache-2.0 AND MIT",
    "c-ares": "MIT",
    "re2": "BSD-3-Clause",
    "upb": "BSD-3-Clause",
    "utf8_range": "MIT",
    "xxhash": "BSD-2-Clause",
    "zlib": "Zlib",
}
IN_PROTOBUF = {"upb": "BSD-3-Clause", "utf8_range": "MIT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part by others. Its notices are licence texts, which must go along with it."""

    name: str
    version: str  # empty: it does not tell
    licence: str  # SPDX expression
    purl: str  # package URL; empty: it came inside of something else
    notices: tuple[str, ...]
    inside: str = ""  # `name` of the component that carries it
    only_in: str = ""  # the file of the release it is in, where that is one only


def components(runtime: Runtime, freeze_work: Path, python: Path) -> list[Component]:
    """Everything by others, in a fixed order. `python`: one that has ziglang. Raises BundleError.

    `freeze_work` is where PyInstaller left its lists.
    """
    found = [*_python(runtime), *_debian(), *_compiled(runtime, python)]
    for package in sorted(frozen_packages(runtime, freeze_work)):
        found += _package(runtime, package)
    return sorted(found, key=lambda one: (one.name, one.inside))


def frozen_packages(runtime: Runtime, freeze_work: Path) -> set[Path]:
    """The dist-info directories of those packages of which a file was frozen."""
    site = site_packages(runtime)
    taken = {
        str(Path(source).relative_to(site))
        for source in _sources(freeze_work / "vgpu-agent")
        if Path(source).is_relative_to(site) and ".dist-info/" not in source
    }
    found = set()
    for info in site.glob("*.dist-info"):
        with (info / "RECORD").open(newline="") as opened:
            if taken & {row[0] for row in csv.reader(opened)}:
                found.add(info)
    return found


def _sources(work: Path) -> Iterator[str]:
    """Files that PyInstaller put into the archive of modules or into the folder."""
    for name in ("PYZ-00.toc", "COLLECT-00.toc"):
        try:
            listed = ast.literal_eval((work / name).read_text())
        except (OSError, ValueError, SyntaxError) as error:
            raise BundleError(f"{work / name}, which tells what was frozen: {error}") from error
        for part in listed:
            if isinstance(part, list):
                yield from (entry[1] for entry in part if len(entry) > 2)  # noqa: PLR2004


def site_packages(runtime: Runtime) -> Path:
    """Where the packages of frozen.lock are installed."""
    return next((runtime.python.parent.parent / "lib").glob("python3.*")) / "site-packages"


# --- from PyPI -----------------------------------------------------------------------------------


def _package(runtime: Runtime, info: Path) -> list[Component]:
    fields = dict(
        line.split(": ", 1)
        for line in (info / "METADATA").read_text().partition("\n\n")[0].splitlines()
        if ": " in line and not line.startswith((" ", "\t"))
    )
    told = fields.get("License-Expression") or fields.get("License", "")
    name, version = fields["Name"], fields["Version"]
    if not told:
        raise BundleError(f"{info} does not tell its licence; say it in {Path(__file__).name}")
    own = Component(
        name=name,
        version=version,
        licence=SPDX.get(told, told),
        purl=f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
        notices=_notices(info) or _header(site_packages(runtime) / "pynvml.py"),
    )
    if carried := {"grpcio": IN_GRPCIO, "protobuf": IN_PROTOBUF}.get(name):
        return [own, *(_inside(part, "", spdx, name) for part, spdx in carried.items())]
    if name == "PyYAML":
        return [own, _inside("libyaml", _told(runtime.python, LIBYAML).strip(), "MIT", name)]
    return [own]


def _notices(info: Path) -> tuple[str, ...]:
    """Texts of licences and notices in a package."""
    names = re.compile(r"(?i)(licen[cs]e|copying|notice)")
    return tuple(
        path.read_text()
        for path in sorted(info.rglob("*"))
        if path.is_file() and names.match(path.name)
    )


def _header(module: Path) -> tuple[str, ...]:
    """The comment at the head of a module, where the package has its licence."""
    lines = []
    for line in module.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.strip("# "))
    return ("\n".join(lines).strip() + "\n",)


# --- machine code --------------------------------------------------------------------------------


def _python(runtime: Runtime) -> list[Component]:
    """CPython and what is linked into its library."""
    told: dict[str, str] = json.loads(_told(runtime.python, ASK_PYTHON))
    home = runtime.python.parent.parent.parent / "cpython"
    [licence] = (home / "lib").glob("python3.*/LICENSE.txt")
    module = re.search(r"^require (\S+) (\S+)", (PINS / "go.mod").read_text(), re.MULTILINE)
    if module is None:
        raise BundleError(f"{PINS / 'go.mod'} requires no module that carries CPython")
    cpython = Component(
        name="cpython",
        version=told["cpython"],
        licence="Python-2.0.1",
        purl=f"pkg:golang/{module[1]}@{quote(module[2])}",
        notices=(licence.read_text(), _notice("cpython-incorporated")),
    )
    return [
        cpython,
        *(_inside(name, told.get(name, ""), spdx, "cpython") for name, spdx in IN_CPYTHON.items()),
    ]


def _debian() -> list[Component]:
    """Libraries out of Debian's packages."""
    found = []
    for package, licence, notices_in, only_in in (
        ("libstdc++6", "GPL-3.0-or-later WITH GCC-exception-3.1", "gcc-10-base", ""),
        ("libgcc-s1", "GPL-3.0-or-later WITH GCC-exception-3.1", "gcc-10-base", ""),
        ("libc6", "LGPL-2.1-or-later", "libc6", "oci.tar"),
    ):
        [path] = (PINS / "debian").glob(f"{package}_*.deb")
        version = path.name.split("_")[1]
        found.append(
            Component(
                name=package,
                version=version,
                licence=licence,
                purl=f"pkg:deb/debian/{quote(package)}@{quote(version)}?arch=amd64",
                notices=(_copyright(notices_in),),
                only_in=only_in,
            )
        )
    return found


def _copyright(package: str) -> str:
    for files in debian_packages(package):
        opened = files.extractfile(f"./usr/share/doc/{package}/copyright")
        if opened is not None:
            return opened.read().decode()
    raise BundleError(f"the package {package} has no copyright file")


def _compiled(runtime: Runtime, python: Path) -> list[Component]:
    """PyInstaller's bootloader, and what is linked into our launcher."""
    [info] = site_packages(runtime).glob("pyinstaller-*.dist-info")
    packed_by = info.name.removesuffix(".dist-info").removeprefix("pyinstaller-")
    version = re.search(r'ZLIB_VERSION "([0-9.]+)', (runtime.inflate / "zlib.h").read_text())
    zig = Path(_told(python, "import ziglang; print(ziglang.__path__[0])").strip())
    zlib = version[1] if version else ""
    zlib_notice = (runtime.inflate / "LICENSE").read_text()
    return [
        Component(
            name="pyinstaller",
            version=packed_by,
            licence=BOOTLOADER,
            purl=f"pkg:pypi/pyinstaller@{packed_by}",
            notices=_notices(info),
        ),
        _inside("zlib", zlib, "Zlib", "pyinstaller", zlib_notice),
        _inside("zlib", zlib, "Zlib", "launcher", zlib_notice),
        Component(
            name="musl",
            version="",
            licence="MIT",
            purl="",
            notices=((zig / "lib" / "libc" / "musl" / "COPYRIGHT").read_text(),),
            inside="launcher",
        ),
    ]


def _inside(name: str, version: str, licence: str, carrier: str, notice: str = "") -> Component:
    return Component(
        name=name, version=version, licence=licence, purl="", notices=(notice or _notice(name),),
        inside=carrier,
    )  # fmt: skip


def _notice(name: str) -> str:
    return (NOTICES / f"{name}.txt").read_text()


def _told(python: Path, code: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreters
        [python, "-c", code], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BundleError(f"{python} does not tell what it carries:\n{done.stderr[-1000:]}")
    return done.stdout
