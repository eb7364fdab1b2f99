"""The hook's room: is the library there, can it be loaded, and does it really refuse?"""

import hashlib
import json
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pynvml

from agent.adapters.caches import CONTAINERS, PRELOAD
from agent.adapters.hook_files import MAX_LIBRARY_BYTES
from agent.doctor.finding import Check, Finding, failed, ok, skipped, unseen
from agent.doctor.host import Ended, Host
from agent.domain.hook_files import LIBRARY, hook_name, is_hook_name
from agent.version import VERSION

FLOOR = (2, 17)  # of the C library in the oldest images that are served
MACHINES = {"x86_64": 62, "aarch64": 183}  # ELF e_machine
MIB = 1 << 20
LIMIT_MIB = 1536  # a context of a large GPU takes some 500 MiB of it
SPARE_MIB = 1024
MEMORY = "/dev/shm"  # noqa: S108 - the directory is made by name, for us alone
REFUSED = 2  # CUDA_ERROR_OUT_OF_MEMORY
AGAIN = "vgpu-agent install   # or pull the image again: the program's own copy is damaged"
RESTART = "systemctl restart vgpu-agent   # kubectl -n kube-system rollout restart ds/vgpu-agent"
_NEEDS = re.compile(rb"GLIBC_(\d{1,3}(?:\.\d{1,3}){1,3})")
_OURS = re.compile(r"libvgpu\.so|/vgpu/")


def present(host: Host) -> Finding:
    """The library that comes with this program."""
    try:
        content = host.hook.read_bytes()
    except FileNotFoundError:
        return failed(f"there is no {host.hook}", AGAIN)
    machine = elf_machine(content)
    wanted = MACHINES.get(platform.machine())
    if machine is None or machine != wanted:
        return failed(
            f"{host.hook} ({len(content)} bytes) is no library for {platform.machine()}", AGAIN
        )
    return ok(f"{host.hook}, {len(content)} bytes, {platform.machine()}")


def elf_machine(content: bytes) -> int | None:
    """`e_machine` of a 64-bit little-endian shared object; None: it is none. Total."""
    if len(content) < 64 or content[:6] != b"\x7fELF\x02\x01":  # noqa: PLR2004 - sizeof Elf64_Ehdr
        return None
    if int.from_bytes(content[16:18], "little") != 3:  # noqa: PLR2004 - ET_DYN
        return None
    return int.from_bytes(content[18:20], "little")


def glibc_needed(content: bytes) -> tuple[int, ...]:
    """The newest version of the C library that is named in the file; empty: none is. Total."""
    named = _NEEDS.findall(content)
    return max((tuple(map(int, version.split(b"."))) for version in named), default=())


def glibc(host: Host) -> Finding:
    """Containers have their own C library."""
    needed = glibc_needed(host.hook.read_bytes()[:MAX_LIBRARY_BYTES])
    floor, version = ".".join(map(str, FLOOR)), ".".join(map(str, needed))
    if not needed:
        return ok("names no version of glibc that it needs")
    if needed[: len(FLOOR)] > FLOOR:
        return failed(
            f"{host.hook} needs glibc {version}: containers with an older one do not start",
            f"python3 build.py hook   # a release is built for glibc {floor}",
        )
    return ok(f"needs glibc {version}, not newer than {floor}")


def installed(host: Host) -> Finding:
    """The file that containers are given."""
    directory = host.config.host_vgpu_dir
    digest = hashlib.sha256(host.hook.read_bytes()).hexdigest()
    path = directory / hook_name(VERSION, digest)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        others = [entry.name for entry in host.entries(directory) if is_hook_name(entry.name)]
        return failed(
            f"{path} is missing; there {'are ' + ', '.join(others[:3]) if others else 'is none'}",
            RESTART,
        )
    if hashlib.sha256(content).hexdigest() != digest:
        return failed(
            f"{path} is not what its name says: somebody wrote into it",
            f"mv {path} {path}.damaged; {RESTART}",
        )
    mode = path.stat().st_mode
    if not mode & 0o004:
        return failed(
            f"{path} cannot be read by the users of containers (mode {mode & 0o777:o})",
            f"chmod 755 {path}",
        )
    return ok(str(path))


def preload_file(host: Host) -> Finding:
    """What containers find as /etc/ld.so.preload."""
    path = host.config.host_vgpu_dir / PRELOAD
    text = host.read_if_there(path)
    wanted = f"{host.config.hook_path}/vgpu/{LIBRARY}"
    if text is None:
        if host.entries(host.config.host_vgpu_dir / CONTAINERS):
            return failed(
                f"{path} is missing, and containers have it mounted as /etc/ld.so.preload", RESTART
            )
        return ok(f"{path} is made with the first grant")
    if text.split() != [wanted]:
        return failed(
            f"{path} says {text[:80]!r} where {wanted} belongs: the hook is not loaded",
            f"echo {wanted} > {path}",
        )
    return ok(f"{path} names {wanted}")


def host_preload(host: Host) -> Finding:
    """The hook is for containers; on the host it would be in every program."""
    if host.contained:
        return unseen()
    path = host.path("/etc/ld.so.preload")
    text = host.read_if_there(path)
    if text and _OURS.search(text):
        return failed(
            f"{path} of the host names the hook: every program of the host loads it",
            f"sed -i '/libvgpu\\.so\\|\\/vgpu\\//d' {path}",
        )
    return ok(f"{path} does not name the hook" if text else f"there is no {path}")


# --- a real process --------------------------------------------------------------------------


def loads(host: Host) -> Finding:
    """A program with the hook in it lives."""
    ended = _started(host, ["load"], {})
    if ended is None or ended.code != 0 or "cannot be preloaded" in ended.errors:
        said = f"exit code {ended.code}: {ended.errors[:300]}" if ended else "no answer"
        return failed(
            f"a program does not start with the hook in it: {said}",
            f"LD_PRELOAD={host.hook} /bin/true; ldd {host.hook}",
        )
    return ok("a program starts with the hook in it")


def limits_hold(host: Host) -> Finding:
    """A program with a limit gets it, and 1 MiB more is refused."""
    uuid = _shared_by_hook(host)
    if not uuid:
        return skipped("no GPU here is shared by the hook: the settings leave it to MIG, or out")
    free_mib = _free_mib(uuid)
    if free_mib is not None and free_mib < LIMIT_MIB + SPARE_MIB:
        return skipped(
            f"{uuid} has {free_mib} MiB free, too few to try a limit of {LIMIT_MIB} MiB",
            "vgpu-agent top --once   # try again when the GPU is less busy",
        )
    with ExitStack() as stack:
        folder = _folder(stack)
        if not folder:
            return skipped(
                f"a process with a limit needs a file, and none can be made in {MEMORY} or where "
                "temporary files go",
                "TMPDIR=/run vgpu-agent doctor --only hook-limits   # or another place to write",
            )
        ended = _started(
            host,
            ["take", str(LIMIT_MIB * MIB)],
            {
                "CUDA_DEVICE_MEMORY_LIMIT": f"{LIMIT_MIB}m",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"{folder}/region.cache",
                "NVIDIA_VISIBLE_DEVICES": uuid,
                "CUDA_VISIBLE_DEVICES": uuid,
            },
        )
    return judged(ended)


def _folder(stack: ExitStack) -> str:
    """A directory to write in until the stack ends; empty: there is none.

    A pod whose root is read-only has no /tmp that takes anything, and memory all the same.
    """
    for place in (None, MEMORY):
        try:
            made = tempfile.TemporaryDirectory(prefix="vgpu-doctor-", dir=place)
            return stack.enter_context(made)
        except OSError:
            continue
    return ""


def _shared_by_hook(host: Host) -> str:
    """The first GPU on which containers have limits of the hook's; empty: there is none.

    On one that is divided by MIG, which may be so if it is left out, CUDA may not even start.
    """
    sharing = host.config.sharing
    if sharing.mode == "mig":
        return ""
    ours = (gpu for gpu in host.gpus if not sharing.excludes(gpu) and not gpu.mig_enabled)
    return next((gpu.uuid for gpu in ours), "")


def judged(ended: Ended | None) -> Finding:
    """What the child's answer says about the limit. Total."""
    look = "LD_DEBUG=libs LIBCUDA_LOG_LEVEL=4 vgpu-agent doctor --only hook-limits --json"
    answer = _answer(ended.output) if ended else {}
    if missing := answer.get("missing"):
        return skipped(
            f"there is no CUDA driver library here: {missing}",
            "ldconfig -p | grep libcuda   # in a pod: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if ended is None or ended.code or not answer:
        said = f"exit code {ended.code}: {ended.errors[:300]}" if ended else "no answer in time"
        return failed(f"the program that was to be limited broke off: {said}", look)
    if step := answer.get("step"):
        return failed(f"{step} gives {answer.get('code')} under the hook", look)
    if answer.get("over") != REFUSED or answer.get("beyond") != REFUSED:
        got = "at once" if answer.get("over") != REFUSED else "in two pieces"
        return failed(
            f"a process with a limit of {LIMIT_MIB} MiB was given more, {got}: limits do not hold",
            look,
        )
    if answer.get("within") != 0:
        return failed(
            f"a process with a limit of {LIMIT_MIB} MiB was refused what it may have "
            f"(CUresult {answer.get('within')}, {_mib(answer.get('free_bytes'))} MiB free)",
            look,
        )
    return ok(
        f"of {LIMIT_MIB} MiB {_mib(answer.get('free_bytes'))} were there to be had, and 1 MiB over "
        "the limit was refused"
    )


def _answer(output: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(output.splitlines()[-1]) if output else {}
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _mib(value: object) -> int:
    return value // MIB if isinstance(value, int) else 0


def _free_mib(uuid: str) -> int | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) // MIB
    except pynvml.NVMLError:
        return None


def _started(host: Host, words: list[str], extra: Mapping[str, str]) -> Ended | None:
    """The child with the hook in it; None: it did not end in time."""
    environ = {
        name: value
        for name, value in host.environ.items()
        if not name.startswith(("CUDA_", "NVIDIA_", "LD_PRELOAD"))
    }
    try:
        return host.run_child(
            [*host.probe, *words], environ | {"LD_PRELOAD": str(host.hook)} | dict(extra)
        )
    except subprocess.TimeoutExpired:
        return None


CHECKS = (
    Check(
        name="hook-present", question="does the hook library come with this program?", look=present
    ),
    Check(
        name="hook-glibc",
        question="does it run in old images?",
        look=glibc,
        needs=("hook-present",),
    ),
    Check(
        name="hook-loads",
        question="can a program be started with it?",
        look=loads,
        needs=("hook-present",),
    ),
    Check(
        name="hook-limits",
        question="is a real process refused 1 MiB over its limit?",
        look=limits_hold,
        needs=("hook-loads", "gpus", "cuda-range", "compute-mode", "mig"),
        within_s=20.0,  # CUDA wakes every GPU of the node where the driver does not stay loaded
    ),
    Check(
        name="hook-installed",
        question="is it where containers get it from?",
        look=installed,
        needs=("hook-present", "agent"),
    ),
    Check(name="preload-file", question="do containers preload it?", look=preload_file),
    Check(name="host-preload", question="does the host itself not preload it?", look=host_preload),
)
