"""The root file system of a container with a GPU workload: glibc, the workload, a shell."""

from pathlib import Path

from built_hook import sim_libraries
from peers.container_tools import ContainerTools
from peers.runc import install, libraries_of, place

TENANT = "/usr/bin/sim-tenant"
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


def libc_directory() -> Path:
    """Where the container's loader looks without being told."""
    return next(p for p in libraries_of(sim_libraries() / "sim-tenant") if "libc." in p.name).parent


def make_rootfs(rootfs: Path, tools: ContainerTools) -> Path:
    """All but the driver's libraries, which NVIDIA's toolkit mounts; and what these need."""
    install(rootfs, sim_libraries() / "sim-tenant", TENANT)
    for library in DRIVER:
        for needed in libraries_of(sim_libraries() / library):
            place(rootfs, needed, str(needed))
    place(rootfs, tools.busybox, "/bin/busybox")
    return rootfs
