"""What the driver tells of a GPU's memory, and of the part of it that is the driver's own."""

from typing import Any

import pynvml

OLDER = frozenset({  # the driver does not know this version of a call
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
})  # fmt: skip
NOT_APART = OLDER | {pynvml.NVML_ERROR_NOT_SUPPORTED}


def memory_as_told(handle: Any) -> Any:
    """Without the driver's own part where the driver tells that apart, as nvidia-smi shows it."""
    try:
        return _apart(handle)
    except pynvml.NVMLError as error:
        if error.value not in OLDER:
            raise
    return pynvml.nvmlDeviceGetMemoryInfo(handle)


def reserved_mib(handle: Any) -> int:
    """What the driver keeps for itself, rounded up; 0 where it does not tell that apart.

    It is in the total that NVML tells, and in no total that CUDA does. Raises pynvml.NVMLError.
    """
    try:
        return -(-int(_apart(handle).reserved) >> 20)
    except pynvml.NVMLError as error:
        if error.value not in NOT_APART:
            raise
    return 0


def _apart(handle: Any) -> Any:
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
