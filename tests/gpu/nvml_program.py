"""Run as a program: tell, as one line of JSON, what the agent's adapter sees of the driver.

It only looks: lists, probes and waits for a moment. Nothing about the GPUs is changed.
"""

import json
from dataclasses import asdict
from typing import Any

import pynvml

from agent.adapters.nvml import NvmlDriver

WAIT_S = 0.2
ROOM_MIB = 6144  # two contexts and what the tests allocate


def look(nvml: NvmlDriver) -> dict[str, Any]:
    """Everything, once. Raises NvmlError."""
    nvml.open()
    gpus = nvml.gpus()
    for gpu in gpus:
        nvml.probe(gpu.uuid)
    events = []
    while (event := nvml.wait_event(WAIT_S)) is not None:
        events.append(asdict(event))
    return {
        "absent": "",
        "gpus": [asdict(gpu) for gpu in gpus],
        "watched": sorted(nvml._watched.values()),
        "unwatchable": sorted(nvml._unwatchable),
        "events": events,
        "again": [gpu.uuid for gpu in nvml.gpus()],
        "pairs": [asdict(pair) for pair in nvml.pairs()],
        "unusable": {gpu.uuid: why for gpu in gpus if (why := unusable(gpu.uuid))},
    }


def unusable(uuid: str) -> str:
    """Why the tests cannot use this GPU, whose state is not theirs to change; empty: they can."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        mig, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # older than MIG
        mig = pynvml.NVML_DEVICE_MIG_DISABLE
    try:
        shared = pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
    except pynvml.NVMLError:
        shared = True
    free_mib = pynvml.nvmlDeviceGetMemoryInfo(handle).free >> 20
    if mig != pynvml.NVML_DEVICE_MIG_DISABLE:
        return "it is in MIG mode"
    if not shared:
        return "its compute mode does not let several processes use it"
    return f"only {free_mib} MiB are free" if free_mib < ROOM_MIB else ""


def absent() -> str:
    """Why there is no GPU, in NVML's words; empty: there is one.

    Not the adapter's words: on a machine with a GPU a faulty adapter must fail, not be skipped.
    """
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return str(error)
    return "" if count else "the driver lists none"


def main() -> None:
    """Look, and say what was seen."""
    reason = absent()
    if reason:
        print(json.dumps({"absent": reason}))  # noqa: T201 - how it speaks
        return
    nvml = NvmlDriver()
    answers = look(nvml)
    nvml.close()
    print(json.dumps(answers))  # noqa: T201


main()
