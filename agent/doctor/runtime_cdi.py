"""Does the container runtime give containers what CDI files describe, without NVIDIA's?"""

import os
from pathlib import Path

from agent.doctor.finding import Finding, failed, ok, warning
from agent.doctor.host import Host
from agent.doctor.runtime_files import Runtime

# Makes a container's root read-only before it runs hooks: 1.21 was seen to.
_ROOT_FIRST = "crun"
_HOOKS = {"create-symlinks", "update-ldcache"}  # of the agent's CDI files
_BELOW = '[plugins."io.containerd.grpc.v1.cri"]'


def by_cdi_alone(host: Host) -> bool:
    """Whether the agent names GPUs by CDI and in no other way."""
    return all(one.startswith("cdi-") for one in host.config.device_list_strategy)


def given_by_cdi(host: Host, kind: str, runtime: Runtime, file: str, restart: str) -> Finding:
    """What becomes of the agent's CDI files. `file`: the runtime's own, to be changed."""
    if kind == "docker":
        return warning(
            "what CDI files describe reaches containers of Docker's only if cri-dockerd passes CDI "
            "devices on: 0.3.17 does not, and they start without the driver",
            "cri-dockerd --version   # without that: --device-list-strategy envvar, and NVIDIA's "
            "runtime as Docker's default",
        )
    looks_in = ", ".join(runtime.cdi_folders) or "no directory"
    if runtime.reads_cdi is False:
        return failed(
            f"{kind} has enable_cdi = false: containers do not get what CDI files describe",
            f"grep -rn enable_cdi {Path(file).parent}   # make it true; then {restart}",
        )
    written_to = str(host.config.cdi_spec_dir)
    if _same(written_to) not in map(_same, runtime.cdi_folders):
        return failed(
            f"{kind} looks for CDI files in {looks_in}, and the agent writes them to {written_to} "
            "(--cdi-spec-dir): containers with a GPU do not start",
            f"vgpu-agent config | grep cdi-spec-dir   # or name it in {kind}'s cdi_spec_dirs; then "
            f"{restart}",
        )
    if runtime.reads_cdi is None:
        return warning(
            f"{kind} before 2.0 gives what CDI files describe only with enable_cdi = true, which "
            "its configuration does not have",
            f"containerd --version   # before 2.0: enable_cdi = true below {_BELOW} in {file}, and "
            f"{restart}",
        )
    if _names_hooks(host) and Path(runtime.program).name.startswith(_ROOT_FIRST):
        return warning(
            f"{kind} starts containers with {_ROOT_FIRST}, and CDI files name hooks "
            "(--nvidia-cdi-hook-path): pods with readOnlyRootFilesystem do not start",
            "vgpu-agent config | grep nvidia-cdi-hook-path   # leave it out, or give such pods a "
            "runtimeClassName of runc's",
        )
    return ok(f"{kind} gives by itself what CDI files in {looks_in} describe")


def _names_hooks(host: Host) -> bool:
    left_out = set(host.config.cdi_disabled_hooks)
    return host.config.cdi_hook_path is not None and not ("all" in left_out or left_out >= _HOOKS)


def _same(folder: str) -> str:
    """One name for /run and /var/run, which leads there."""
    return os.path.normpath(
        folder.removeprefix("/var") if folder.startswith("/var/run/") else folder
    )
