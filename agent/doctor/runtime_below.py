"""NVIDIA's runtime starts another one: does it find that on a node with CRI-O?

CRI-O's packages keep runc and crun in a directory of their own, in which nobody looks. By the
runtimes of 1.17.8, 1.19.1 and 1.20.2 no container starts then: where NVIDIA's is the default, none
of the node's. Other container runtimes have theirs in the usual places, or tell where.
"""

import os
from pathlib import Path

from agent.doctor import runtime_files as files
from agent.doctor.finding import Check, Finding, failed, ok, unseen
from agent.doctor.host import Host
from agent.doctor.runtime import runtimes
from agent.doctor.runtime_files import Runtime, table, text
from agent.doctor.toolkit_settings import setting_it, settings_file

SETTING = "nvidia-container-runtime.runtimes"
NAMES = ("runc", "crun")  # what it looks for unless it is told others
FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def runtime_below(host: Host) -> Finding:
    """The program that NVIDIA's runtime passes containers on to."""
    if host.contained:
        return unseen()
    one = runtimes(host)[0]
    if one.kind != "cri-o" or not one.runtime.nvidia_handlers:
        return ok("asked only where CRI-O starts NVIDIA's runtime")
    name = settings_file(host)
    named = _named(host, name)
    folders = dict.fromkeys((*one.runtime.search_path, *FOLDERS))
    for program in named:
        places = [program] if program.startswith("/") else [f"{at}/{program}" for at in folders]
        if there := next((place for place in places if _starts(host, place)), ""):
            return ok(f"NVIDIA's runtime starts {there}")
    return failed(
        f"NVIDIA's runtime finds none of {', '.join(named)} ({SETTING}) in {', '.join(folders)}: "
        "no container starts that it is to start",
        setting_it(name, f"{SETTING}={_of_crio(host, one.runtime)}"),
    )


def _named(host: Host, name: str) -> tuple[str, ...]:
    document = files.toml_of(host.read_if_there(host.path(name)) or "") or {}
    told = table(document.get("nvidia-container-runtime")).get("runtimes")
    return tuple(filter(None, map(text, told))) if isinstance(told, list) else NAMES


def _starts(host: Host, program: str) -> bool:
    path = host.path(program)
    return path.is_file() and os.access(path, os.X_OK)


def _of_crio(host: Host, runtime: Runtime) -> str:
    """One that CRI-O itself is told of, by its path."""
    programs = [runtime.handlers[name] for name in sorted(runtime.handlers)]
    own = (one for one in programs if Path(one).name in NAMES and _starts(host, one))
    return next(own, "/usr/libexec/crio/crun")


CHECKS = (
    Check(
        name="runtime-below",
        question="does NVIDIA's runtime find the one below it?",
        look=runtime_below,
        needs=("runtime-program",),
    ),
)
