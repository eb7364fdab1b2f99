"""Every parser of bytes that somebody else has written, as a function of these bytes.

A target lets pass what its parser says of malformed input, if that is one clear sentence; anything
else that is raised is a defect, as is what a parser reads and does not write back as it was.
"""

import base64
import contextlib
import json
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.adapters.caches import directory_name, is_directory_name
from agent.adapters.http_messages import Head, read_head
from agent.adapters.kube_answers import Request, decoded, retry_after_s
from agent.domain import (
    claims,
    grant_lines,
    handshake,
    limit_record,
    limit_requests,
    limits_file,
    mig_allocations,
    mig_books,
    pods,
    proc_text,
    register,
    switch_words,
    totals,
    use_reading,
    vgpu_ids,
    volcano,
)
from agent.domain import region as regions
from agent.domain.asked import MOST
from agent.domain.executables import linkage_of
from agent.domain.kubelet_books import MalformedCheckpoint, decode_checkpoint
from agent.domain.mig import decode_slot, gpu_uuid_of
from agent.domain.nodelock import decode_lock
from agent.domain.vgpu_ids import parse_vgpu_id
from agent.errors import AgentError
from agent.hostinstall import environment_file
from agent.settings.resolve import resolve
from tests.made_regions import LAYOUTS, MadeSlot, made

LONGEST_SENTENCE = 4000  # characters of a message, whatever it is about


class Defect(Exception):
    """A parser did what no parser may do."""


@contextlib.contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Let pass what a parser says of malformed input: in one clear sentence."""
    try:
        yield
    except kinds as error:
        sentence = str(error)
        if not sentence or not sentence.isprintable() or len(sentence) > LONGEST_SENTENCE:
            raise Defect(f"no clear sentence: {sentence[:LONGEST_SENTENCE]!a}") from error


def insist(so: bool, what: str) -> None:
    """State what has to hold."""
    if not so:
        raise Defect(what)


def text_of(data: bytes) -> str:
    """Any text at all: what is no UTF-8 becomes lone surrogates, as in JSON's escapes."""
    return data.decode("utf-8", "surrogateescape")


def json_of(data: bytes) -> Any:
    """What the API server's JSON may hold; text for what is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return text_of(data)


# --- annotations ---------------------------------------------------------------------------------


def hami_claims(data: bytes) -> None:
    text = text_of(data)
    claims.holds_devices(text)
    with refusing(AgentError):
        slots = claims.decode_claims(text)
        claims.pending(slots)
        again = claims.decode_claims(claims.encode_claims(slots))
        insist(
            claims.pending(again) == claims.pending(slots), "claims are written as they were read"
        )
        for place in range(len(slots)):
            insist(place not in claims.pending(claims.erased(slots, place)), "erased is gone")


def volcano_claims(data: bytes) -> None:
    factor = max(1, data[0]) if data else 1
    text = text_of(data[1:])
    with refusing(AgentError):
        slots = volcano.decode(text, factor)
        again = volcano.decode(volcano.encode(slots, factor), factor)
        insist(volcano.pending(again) == volcano.pending(slots), "claims are written as they were")
        for place in range(len(slots)):
            insist(place not in volcano.pending(volcano.erased(slots, place)), "erased is gone")


def hami_register(data: bytes) -> None:
    text = text_of(data)
    for form in ("json", "csv9", "csv7"):
        register.says_the_same(text, (), form)
        with refusing(AgentError):
            register.decode_register(text, form)


def mig_annotation(data: bytes) -> None:
    with refusing(AgentError):
        mig_allocations.decode_allocations(text_of(data))


def node_annotations(data: bytes) -> None:
    text = text_of(data)
    decode_lock(text)
    handshake.is_report(text)
    handshake.needs_answer(text)
    answer = handshake.answer(text, now_s=1e9, since_last_s=1.0)
    insist(not handshake.needs_answer(answer.text), "an answer asks nothing")


def limits_annotation(data: bytes) -> None:
    limit_requests.annotation_entry(text_of(data), "main")
    with refusing(AgentError):
        for entry in limit_requests.parse_annotation(text_of(data)).values():
            insist(len(entry.problem) <= LONGEST_SENTENCE, "a short problem")
            insist(not entry.problem or entry.problem.isprintable(), "a clear problem")


# --- names and objects ---------------------------------------------------------------------------


def names(data: bytes) -> None:
    uid, _, container = text_of(data).partition("\n")
    with refusing(AgentError):
        name = directory_name(uid, container)
        insist(is_directory_name(name), "a name is known again")
        insist("/" not in name and name not in (".", "..") and name.isascii(), "a name is one")


def device_ids(data: bytes) -> None:
    text = text_of(data)
    decode_slot(text)
    gpu_uuid_of(text)
    found = parse_vgpu_id(text)
    if found is not None and "::" not in text:
        insist(vgpu_ids.vgpu_id(*found) == text, "an id is written as it was read")


def pods_and_nodes(data: bytes) -> None:
    obj = json_of(data)
    pod = pods.decode_pod(obj, resource="nvidia.com/gpu", also=("volcano.sh/vgpu-number",))
    insist(isinstance(pod.full_name, str), "a pod has a name")
    _ = pod.finished, hash(pod.uid)
    for container in pod.containers:
        insist(0 <= container.vgpus <= MOST, "a count is one")
        insist(0 <= container.asked.memory_units <= MOST, "an amount is one")
    pods.decode_node(obj)


def api_answers(data: bytes) -> None:
    about = Request(
        verb="get", resource="nodes", method="GET", path="/api/v1/nodes/n", about="node n"
    )
    retry_after_s({"Retry-After": text_of(data)})
    with refusing(AgentError):
        decoded(data, about)


def checkpoint(data: bytes) -> None:
    with refusing(MalformedCheckpoint):
        decode_checkpoint(data.decode(errors="replace"))
    answer = {"AllocResp": base64.b64encode(data).decode(), "DeviceIDs": {"0": ["a"]}}
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", **answer}
    decode_checkpoint(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))


# --- files of the agent's own, which a disk or a hand may have spoilt ------------------------------


def grants_journal(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        grant_lines.decode_file(data.decode())


def totals_journal(data: bytes) -> None:
    with contextlib.suppress(totals.MalformedTotals):
        ledger = totals.decode(data)
        insist(
            totals.decode(totals.encode(ledger)) == ledger, "totals are written as they were read"
        )


def slices_journal(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        book = mig_books.decode_book(data)
        insist(mig_books.decode_book(mig_books.encode_book(book)) == book, "as they were read")


def limits_journal(data: bytes) -> None:
    with contextlib.suppress(limit_record.MalformedRecord):
        record = limit_record.decode_record(data)
        again = limit_record.decode_record(limit_record.encode_record(record))
        insist(again == record, "a record is written as it was read")


def limits(data: bytes) -> None:
    for content in (data, limits_template(data)):
        with contextlib.suppress(limits_file.MalformedLimits):
            found = limits_file.decode(content)
            again = limits_file.decode(limits_file.encode(found))
            insist(again == found, "limits are written as they were read")


def limits_template(data: bytes) -> bytes:
    """The bytes behind the head of a file whose head is in order."""
    head = struct.pack("<IIII", 0x6D696C76, 1, 1 + len(data) % 16, len(data) % 3)
    return (head + data).ljust(4096, b"\0")


# --- files of a container, and its processes -------------------------------------------------------

AREAS = (0, 64, 1592, 1848, 1856, 3816, 2008896, 1197880, 2031616, 2031680, 2035776)


def region(data: bytes) -> None:
    """A file of one of the layouts, with pieces written over it: area, offset, length, bytes."""
    kind, cut, *_ = (*data[:2], 0, 0)
    content = made(list(LAYOUTS.values())[kind % 4], [MadeSlot(pid=7, data=100)])
    rest = data[2:]
    while len(rest) > 4:
        at = AREAS[rest[0] % len(AREAS)] + int.from_bytes(rest[1:3], "little")
        size = min(rest[3], max(0, len(content) - at))
        content[at : at + size] = rest[4 : 4 + size].ljust(size, b"\0")
        rest = rest[4 + rest[3] :]
    whole = bytes(content[: len(content) - cut * 7000] if cut % 16 else content)
    read_all(whole)
    read_all(data)


def read_all(content: bytes) -> None:
    with refusing(regions.MalformedRegion):
        found = regions.decode(content)
        for place, device in enumerate(found.devices):
            insist(device.uuid.isprintable(), "a plain uuid")
            insist(found.used_bytes(place) >= 0, "a sum")
        for refusal in found.refusals:
            insist(refusal.function.isprintable(), "a plain name")
    layout = switch_words.layout_of(len(content), content[:8])
    if layout is not None:
        switch_words.words_of(layout, content[:1856], content[layout["slot_count"] :])
    switch_words.is_ours(content[regions.TAIL_OFFSET : regions.TAIL_OFFSET + 8])
    for place in range(2):
        switch_words.activity_at(content[switch_words.ACTIVITY_AT :][:4096], place)


def processes(data: bytes) -> None:
    text = text_of(data)
    proc_text.place_of(text)
    name = proc_text.granted_mount(text, "containers", "u")
    insist("/" not in name, "a container's name is no path")
    proc_text.mounted_grant(text, "containers")
    insist(proc_text.pid_inside(text) >= 0, "a pid")
    proc_text.life_of(text)
    proc_text.mapped(data)
    proc_text.is_gpu_device(data)


def executables(data: bytes) -> None:
    linkage_of(lambda at, size: data[at : at + size])
    linkage_of(lambda at, size: data[at : at + size], name=text_of(data[:40]))


# --- what is asked of the agent, and what it is told ------------------------------------------------


def http_head(data: bytes) -> None:
    head = read_head(data)
    if isinstance(head, Head):
        head.body_bytes()


def limits_request(data: bytes) -> None:
    with refusing(AgentError):
        limit_requests.parse_body(data)


def use_answer(data: bytes) -> None:
    with refusing(use_reading.UnreadableUse):
        use_reading.decode(json_of(data))


_FOLDER = tempfile.TemporaryDirectory(prefix="vgpu-fuzz-")


def configured(name: str, flag: str, data: bytes, **more: str) -> None:
    """Start from a file as the agent does, up to the point where it would do something."""
    path = Path(_FOLDER.name) / name
    path.write_bytes(data)
    with refusing(AgentError):
        resolve({flag: str(path), "node-name": "n", **more}, {}, hostname=lambda: "n")


def config_file(data: bytes) -> None:
    configured("config.yaml", "config-file", data)


def nvidia_config_file(data: bytes) -> None:
    configured("config.yaml", "config-file", b"version: v1\n" + data, mode="nvidia")


def node_override(data: bytes) -> None:
    configured("config.json", "node-config-file", data)


def settings(data: bytes) -> None:
    """Any variables: as systemd's environment file has them."""
    given = environment_file.parse(data)
    with refusing(AgentError):
        resolve({"node-name": "n"}, given, hostname=lambda: "n")


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "api-answers": api_answers,
    "checkpoint": checkpoint,
    "config-file": config_file,
    "device-ids": device_ids,
    "executables": executables,
    "grants-journal": grants_journal,
    "hami-claims": hami_claims,
    "hami-register": hami_register,
    "http-head": http_head,
    "limits-annotation": limits_annotation,
    "limits-file": limits,
    "limits-journal": limits_journal,
    "limits-request": limits_request,
    "mig-annotation": mig_annotation,
    "names": names,
    "node-annotations": node_annotations,
    "node-override": node_override,
    "nvidia-config-file": nvidia_config_file,
    "pods-and-nodes": pods_and_nodes,
    "processes": processes,
    "region": region,
    "settings": settings,
    "slices-journal": slices_journal,
    "totals-journal": totals_journal,
    "use-answer": use_answer,
    "volcano-claims": volcano_claims,
}
