"""What must hold on a node whatever has gone wrong, judged from outside the agent.

Read here with parsers of their own (docs/limits-file.md, docs/usage-region.md): the journal of
grants, limits files and usage regions on disk; and beside them what kubelet, the API server and
/metrics say. Each function gives sentences; none means that the invariant holds.
"""

import contextlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agent.sim.node import RESOURCE, RanPod, SimNode
from agent.sim.scheduler import LOCK

MIB = 1 << 20
LIMITS_BYTES, LIMITS_MAGIC, MOST_DEVICES = 4096, 0x6D696C76, 16
REGION_BYTES, REGION_MAGIC, TAIL_AT, TAIL_MAGIC = 2039808, 19920718, 2031616, 0x75706776
TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")
ENDED = ("Succeeded", "Failed")


def violations(node: SimNode, pods: Iterable[RanPod] = ()) -> list[str]:
    """Everything that must hold at any moment at which an agent is ready."""
    found = [*half_written(node), *above_capacity(node), *shared_budgets(node)]
    return found + [one for pod in pods for one in unlike_its_claims(node, pod)]


# --- nothing on disk is half written --------------------------------------------------------------


def half_written(node: SimNode) -> list[str]:
    """Files that a reader could not use."""
    paths = [path for path in (node.root / "state").rglob("*") if not path.name.startswith(".")]
    found = [f"{path.name} was put aside" for path in paths if path.suffix == ".corrupt"]
    for path in paths:
        if path.suffix in (".jsonl", ".json") and (problem := _problem_of_json(path)):
            found.append(f"{path.name}: {problem}")
    for name, raw in limits_files(node):
        if problem := _problem_of_limits(raw):
            found.append(f"limits of {name}: {problem}")
    for folder in (node.root / "host/vgpu/containers").glob("*"):
        with contextlib.suppress(FileNotFoundError):  # it is being cleaned up
            for path in folder.glob("*.cache"):
                if problem := _problem_of_region(path.read_bytes()):
                    found.append(f"region {folder.name}: {problem}")
    return found


def _problem_of_json(path: Path) -> str:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ""  # it is being cleaned up
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    if path.suffix == ".jsonl" and text and not text.endswith("\n"):
        return "the last line is cut short"
    try:
        for line in lines:
            json.loads(line)
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def limits_files(node: SimNode) -> Iterator[tuple[str, bytes]]:
    for path in sorted((node.root / "host/vgpu/limits").glob("[!.]*")):
        with contextlib.suppress(FileNotFoundError):  # it is being cleaned up
            yield path.name, path.read_bytes()


def _problem_of_limits(raw: bytes) -> str:
    if len(raw) != LIMITS_BYTES:
        return f"{len(raw)} bytes"
    magic, version, devices = struct.unpack_from("<III", raw)
    if (magic, version) != (LIMITS_MAGIC, 1) or not 1 <= devices <= MOST_DEVICES:
        return f"no limits file: {magic:#x} {version} {devices}"
    if any(struct.unpack_from("<I", raw, 64 + 64 * n)[0] % 2 for n in range(devices)):
        return "a line is half written"
    return ""


def _problem_of_region(raw: bytes) -> str:
    if len(raw) != REGION_BYTES:
        return f"{len(raw)} bytes"
    if struct.unpack_from("<i", raw)[0] != REGION_MAGIC:
        return "it has no magic"
    return "" if struct.unpack_from("<I", raw, TAIL_AT)[0] == TAIL_MAGIC else "it has no end"


# --- the sum of grants never exceeds capacity -----------------------------------------------------


def journal(node: SimNode) -> list[dict[str, Any]]:
    """The grants that the agent remembers of pods that still are."""
    live = {uid for uid, phase in phases(node).items() if phase not in ENDED}
    granted: dict[tuple[str, str], dict[str, Any]] = {}
    for path in journals(node):
        for line in _lines(path):
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # half_written says so
            if "granted" in entry:
                one = entry["granted"]
                granted[one["pod_uid"], one["container"]] = one
            elif "dropped" in entry:
                granted.pop((path.stem, entry["dropped"]), None)
    return [one for (uid, _), one in granted.items() if uid in live]


def journals(node: SimNode) -> list[Path]:
    return sorted((node.root / "state/grants").glob("*.jsonl"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except FileNotFoundError:
        return []


def phases(node: SimNode) -> dict[str, str]:
    """Phase of every pod there is, by uid."""
    pods = node.client.list("pods")
    return {p["metadata"]["uid"]: p.get("status", {}).get("phase", "") for p in pods}


def above_capacity(node: SimNode) -> list[str]:
    """GPUs of which more is granted than there is, by the journal and by the limits files."""
    room = {gpu.uuid: (gpu.memory_mib or 0) for gpu in node.driver._node.gpus.values()}
    memory: Counter[str] = Counter()
    cores: Counter[str] = Counter()
    for one in journal(node):
        for claim in one["claims"]:
            memory[claim["uuid"]] += claim["memory_mib"]
            cores[claim["uuid"]] += claim["core_percent"]
    found = [f"{u}: {mib} MiB granted" for u, mib in memory.items() if mib > room.get(u, 0)]
    found += [f"{u}: {percent} % granted" for u, percent in cores.items() if percent > 100]
    live = {uid for uid, phase in phases(node).items() if phase not in ENDED}
    written: Counter[bytes] = Counter()
    for name, raw in limits_files(node):
        if name.partition("_")[0] in live and not _problem_of_limits(raw):
            for place in range(struct.unpack_from("<I", raw, 8)[0]):
                uuid, limit = struct.unpack_from("<16sQ", raw, 64 + 64 * place + 8)
                written[uuid] += limit
    most = max(room.values(), default=0) * MIB
    return found + [f"{u.hex()}: {b} bytes in limits files" for u, b in written.items() if b > most]


# --- no two containers own the same budget --------------------------------------------------------


def shared_budgets(node: SimNode) -> list[str]:
    """Files, region ids or vGPUs that two containers have been given."""
    owners: dict[object, list[str]] = {}
    for one in journal(node):
        who = f"{one['pod_name']}/{one['container']}"
        mounted = {m["container_path"]: Path(m["host_path"]) for m in one["grant"]["mounts"]}
        for inside in ("/usr/local/vgpu", "/etc/vgpu.limits"):
            path = mounted.get(inside)
            if path is not None:
                owners.setdefault(str(path), []).append(who)
                if path.exists():
                    owners.setdefault((inside, path.stat().st_ino), []).append(who)
        limits = mounted.get("/etc/vgpu.limits")
        if limits is not None and limits.exists():
            owners.setdefault(struct.unpack_from("<QQ", limits.read_bytes(), 24), []).append(who)
    found = [
        f"{what} belongs to {' and '.join(who)}" for what, who in owners.items() if len(who) > 1
    ]
    return found + _doubly_held_ids(node)


def _doubly_held_ids(node: SimNode) -> list[str]:
    """VGPUs that kubelet has given to two containers that run side by side."""
    books = json.loads((node.kubelet.directory / "kubelet_internal_checkpoint").read_text())
    held: dict[str, set[str]] = {}
    for entry in books["Data"]["PodDeviceEntries"] or ():
        if entry["ResourceName"] == RESOURCE:
            ids = entry["DeviceIDs"]
            flat = [i for some in ids.values() for i in some] if isinstance(ids, dict) else ids
            for device_id in flat:
                held.setdefault(device_id, set()).add(entry["PodUID"])
    return [f"vGPU {i} is of {len(pods)} pods" for i, pods in held.items() if len(pods) > 1]


def unlike_its_claims(node: SimNode, pod: RanPod) -> list[str]:
    """Whether what an admitted pod got is what the scheduler decided for it."""
    if not pod.admitted.ok:
        return [] if pod.admitted.message else [f"{pod.name} was refused without a word"]
    names = [name for name, grant in pod.admitted.containers.items() if grant.env]
    slots = [slot for slot in pod.claims if slot]
    found = []
    for name, slot in zip(names, slots, strict=True):
        env = pod.admitted.containers[name].env
        limits = [env.get(f"CUDA_DEVICE_MEMORY_LIMIT_{n}") for n in range(len(slot))]
        if limits != [f"{claim.memory_mib}m" for claim in slot]:
            found.append(f"{pod.name}/{name} has {limits}")
        if env.get("NVIDIA_VISIBLE_DEVICES") != ",".join(claim.uuid for claim in slot):
            found.append(f"{pod.name}/{name} has {env.get('NVIDIA_VISIBLE_DEVICES')}")
    return found


# --- each grant is released -----------------------------------------------------------------------


def unreleased(node: SimNode) -> list[str]:
    """What is left of pods that are gone, and of writes that were never finished."""
    live = set(phases(node))
    found = ["the node is locked"] if LOCK in node.annotations() else []
    places = ("host/vgpu/containers", "host/vgpu/limits", "host/vgpu/exchanged",
              "state/grants", "state/limits")  # fmt: skip
    for place in places:
        for path in (node.root / place).glob("*"):
            uid = path.name.partition("_")[0].partition(".")[0]
            if uid not in live and not TEMPORARY.fullmatch(path.name):
                found.append(f"{place}/{path.name}")
    return found + leftovers(node)


def leftovers(node: SimNode) -> list[str]:
    """Files that were to be renamed by an agent that is gone."""
    places = ("host/vgpu", "state", "run")
    paths = [  # of directories that the agent takes away meanwhile os.walk says nothing
        Path(at, name)
        for place in places
        for at, directories, files in os.walk(node.root / place)
        for name in (*directories, *files)
    ]
    mine = f".{node.agent.pid}." if node.agent is not None else ". "
    return [
        str(path.relative_to(node.root))
        for path in paths
        if TEMPORARY.fullmatch(path.name) and mine not in path.name
    ]


# --- counters only go on --------------------------------------------------------------------------


class Counters:
    """Those of containers, which outlive the agent; seen again and again."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._highest: dict[str, float] = {}

    def violations(self) -> list[str]:
        """Counters that are lower than they were."""
        found = []
        for line in self._node.fetch("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            if not re.match(r"vgpu_container_\w+_total\{", series):
                continue
            if float(value) < self._highest.get(series, 0.0):
                found.append(f"{series}: {value} after {self._highest[series]}")
            self._highest[series] = max(float(value), self._highest.get(series, 0.0))
        return found

    @property
    def seen(self) -> int:
        return len(self._highest)


def refused_allocations(node: SimNode, pod: str) -> float:
    """Of a pod, as /metrics has them; 0: none, or nobody tells."""
    beginning, label = "vgpu_container_allocations_refused_total{", 'pod="' + pod + '"'
    lines = node.fetch("/metrics")[1].splitlines()
    found = [one for one in lines if one.startswith(beginning) and label in one]
    return sum(float(one.rpartition(" ")[2]) for one in found)
