"""May this process still open the driver's devices? A reload of systemd takes them from containers.

Who had them open keeps those, so that its programs run on, and can open none anew.
"""

import errno
import os

CONTROL = "/dev/nvidiactl"  # which NVML opens first, wherever the driver is


def devices_taken(device: str = CONTROL) -> bool:
    """Whether the kernel refuses it to our cgroup. A driver that fails has other errors."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno == errno.EPERM
    return False
