"""Which files of a host are the NVIDIA driver's, by name.

Source: NVIDIA container toolkit 1.20, pkg/nvcdi and internal/discover, for what a CDI file of a
driver holds; NVIDIA driver packages, for the names.
"""

import re
from collections.abc import Iterable, Iterator

LIBRARY_DIRS = (
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64"),
    *("usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current"),
    *("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "usr/lib", "lib"),
)
# Debian's own packages put a driver here, and lead to it from the directory above by alternatives.
BESIDE = "/nvidia/current"
_OF_X = tuple(
    f"xorg/{below}/{kind}"
    for below in ("modules", "modules/updates")
    for kind in ("drivers", "extensions")
)
# Below a directory of libraries, where programs look for modules by a path of their own. The second
# is that of Ubuntu's packages, which tell X of it.
MODULE_DIRS = ("vdpau", "nvidia/xorg", *_OF_X)
# Where those of X are if not there: whatever directory the libraries are in, by distribution.
X_DIRS = tuple(f"{place}/{below}" for place in ("usr/lib", "usr/lib64") for below in _OF_X)
GBM_BACKEND, GBM_LIBRARY = "gbm/nvidia-drm_gbm.so", "libnvidia-allocator.so"  # a link to the other
PROGRAM_DIRS = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin")
PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control",
            "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl")  # fmt: skip
SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
CONFIG_DIRS = ("etc", "usr/share")
CONFIG_FILES = (  # of graphics, OpenCL and ray tracing: which library a loader is to take
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
FIRMWARE = re.compile(r"(gsp|ucodes).*\.bin", re.ASCII)  # the latter of r615 and later
# Names that programs ask for, and that packages without development files leave out: by library.
USUAL_LINKS = {
    "libcuda.so": "libcuda.so.1",
    "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
    "libGLX_indirect.so.0": "libGLX_nvidia.so.0",
}

_VERSIONED = re.compile(r"libcuda\.so\.(\d+(?:\.\d+){1,3})", re.ASCII)
# Of a driver, and with a version of their own.
_OTHERWISE_VERSIONED = re.compile(
    r"libnvidia-(egl-(gbm|wayland2?|xcb|xlib)|nvvm70|api)\.so\.\d+(\.\d+)*", re.ASCII
)


def versions(names: Iterable[str]) -> Iterator[str]:
    """Versions of the driver whose libcuda is among these names."""
    return (match[1] for name in sorted(names) if (match := _VERSIONED.fullmatch(name)))


def is_library(name: str, version: str) -> bool:
    """Whether a file in a directory of libraries is a driver's."""
    if not name.startswith("lib"):
        return False
    return name.endswith(f".so.{version}") or bool(_OTHERWISE_VERSIONED.fullmatch(name))


def is_module(name: str, version: str) -> bool:
    """Whether a file in one of MODULE_DIRS is a driver's."""
    return name.endswith(f".so.{version}") or name == "nvidia_drv.so"
