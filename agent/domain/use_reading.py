"""What does a document of `/v1/use` say? For the commands that ask the agent.

Total: whatever is in the document, there is a picture or `UnreadableUse`. Fields that are not
known are passed over, so that a newer agent may say more.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    GpuProcess,
    GpuUse,
    NodeUse,
    ProcessUse,
    SelfReported,
    Tier,
    Totals,
)
from agent.domain.bypass import Bypass, Kind
from agent.domain.enforcement import ContainerState, Reason, State
from agent.domain.node_picture import NodePicture
from agent.domain.region import ProcessCounters, Refusal
from agent.domain.use_json import VERSION
from agent.errors import AgentError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
LONGEST_NUMBER = 1e300
COUNTS = ("gpu_ns", "throttled_ns", "refusals", "refused_bytes", "launches")
OF_REFUSAL = (
    *("number", "time_ns", "pid", "place", "asked_bytes", "used_bytes", "limit_bytes"),
    *("largest_bytes", "largest_pid"),
)
OF_BYPASS = ("gpu", "pod_uid", "namespace", "pod", "container", "program", "explained")


class UnreadableUse(AgentError):
    """The document is none that this program can read; the message says where."""


class _Fields:
    """An object of the document, with its place in it for the message."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "an object")
        self._fields = value
        self._where = where

    def text(self, name: str) -> str:
        value = self._fields.get(name, "")
        if not isinstance(value, str):
            raise _wrong(self._at(name), "a text")
        return value

    def word(self, name: str, words: type[E]) -> E:
        text = self.text(name)
        if text not in {word.value for word in words}:
            raise _wrong(self._at(name), "one of " + ", ".join(repr(w.value) for w in words))
        return words(text)

    def flag(self, name: str) -> bool:
        return self._fields.get(name) is True

    def number(self, name: str) -> float | None:
        value = self._fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(self._at(name), "a number")
        if not -LONGEST_NUMBER < value < LONGEST_NUMBER:  # neither NaN nor infinite
            raise _wrong(self._at(name), "a number")
        return value

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def count(self, name: str) -> int:
        return self.whole(name) or 0

    def inner(self, name: str) -> "_Fields | None":
        value = self._fields.get(name)
        return None if value is None else _Fields(value, self._at(name))

    def each(self, name: str, read: "Callable[[_Fields], T]") -> tuple[T, ...]:
        return tuple(read(_Fields(value, where)) for value, where in self._listed(name))

    def each_text(self, name: str) -> tuple[str, ...]:
        return tuple(_text(value, where) for value, where in self._listed(name))

    def each_count(self, name: str) -> tuple[int, ...]:
        return tuple(_Fields({"": value}, where).count("") for value, where in self._listed(name))

    def each_whole(self, name: str) -> tuple[int | None, ...]:
        return tuple(_Fields({"": value}, where).whole("") for value, where in self._listed(name))

    def counts(self, name: str) -> dict[str, int]:
        inner = self.inner(name)
        return {} if inner is None else {key: inner.count(key) for key in inner._fields}

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def _listed(self, name: str) -> Iterable[tuple[Any, str]]:
        values = self._fields.get(name, [])
        if not isinstance(values, list):
            raise _wrong(self._at(name), "a list")
        return ((value, f"{self._at(name)}[{number}]") for number, value in enumerate(values))

    def _at(self, name: str) -> str:
        return f"{self._where}.{name}".strip(".")


def decode(document: Any) -> NodePicture:
    """The picture that a document tells. Raises UnreadableUse."""
    fields = _Fields(document, "")
    version = fields.whole("version")
    if version != VERSION:
        raise UnreadableUse(
            f"the agent speaks version {version} of /v1/use, this program {VERSION}; use the "
            "program that the agent is an instance of"
        )
    gpus = fields.each("gpus", lambda gpu: (_gpu(gpu), gpu.text("unhealthy_reason")))
    return NodePicture(
        answered_at_s=fields.number("answered_at_s") or 0.0,
        node=fields.text("node"),
        agent_version=fields.text("agent_version"),
        use=NodeUse(
            taken_at_s=fields.number("taken_at_s") or 0.0,
            gpus=tuple(gpu for gpu, _ in gpus),
            gpus_problem=fields.text("gpus_problem"),
            containers=fields.each("containers", _container),
            rejected_regions=MappingProxyType(fields.counts("rejected_regions")),
        ),
        unhealthy=MappingProxyType({gpu.uuid: reason for gpu, reason in gpus if reason}),
        bypasses=fields.each("bypasses", _bypass),
        missing=fields.each_text("not_serving"),
    )


def _gpu(fields: _Fields) -> GpuUse:
    driver = fields.inner("driver") or _Fields({}, "")
    return GpuUse(
        uuid=fields.text("uuid"),
        index=fields.count("index"),
        name=fields.text("name"),
        mig_enabled=fields.flag("mig_enabled"),
        memory_used_bytes=driver.whole("memory_used_bytes"),
        memory_total_bytes=driver.whole("memory_total_bytes"),
        utilisation_percent=driver.whole("utilisation_percent"),
        memory_utilisation_percent=driver.whole("memory_utilisation_percent"),
        temperature_celsius=driver.whole("temperature_celsius"),
        power_watts=driver.number("power_watts"),
        ecc_corrected=driver.whole("ecc_corrected"),
        ecc_uncorrected=driver.whole("ecc_uncorrected"),
        processes=driver.each("processes", _gpu_process) if driver.has("processes") else None,
    )


def _gpu_process(fields: _Fields) -> GpuProcess:
    return GpuProcess(
        pid=fields.count("pid"),
        used_bytes=fields.whole("used_bytes"),
        sm_percent=fields.whole("sm_percent"),
    )


def _container(fields: _Fields) -> ContainerUse:
    namespace, pod = fields.text("namespace"), fields.text("pod")
    container = fields.text("container")
    enforcement = fields.inner("enforcement")
    return ContainerUse(
        pod_uid=fields.text("pod_uid"),
        namespace=namespace,
        pod=pod,
        container=container,
        tier=fields.word("tier", Tier),
        hook_version=fields.text("hook_version"),
        priority=fields.count("priority"),
        state=None
        if enforcement is None
        else ContainerState(
            namespace=namespace,
            pod=pod,
            container=container,
            state=enforcement.word("state", State),
            reason=enforcement.word("reason", Reason),
        ),
        devices=fields.each("devices", _device),
        processes=fields.each("processes", _process),
        last_kernel_s=fields.count("last_kernel_at_s"),
        refusals=fields.each("refusals", _refusal),
        region_problem=fields.text("region_problem"),
    )


def _device(fields: _Fields) -> DeviceUse:
    totals, driver = fields.inner("totals"), fields.inner("driver")
    reported = fields.inner("self_reported")
    return DeviceUse(
        place=fields.count("place"),
        uuid=fields.text("uuid"),
        memory_limit_bytes=fields.count("memory_limit_bytes"),
        core_permille=fields.count("core_limit_permille"),
        lent_permille=fields.count("core_lent_permille"),
        blocked=fields.flag("blocked"),
        disagrees=fields.flag("disagrees"),
        totals=Totals(**{name: totals.count(name) for name in COUNTS}) if totals else Totals(),
        driver_bytes=driver.whole("memory_used_bytes") if driver else None,
        driver_sm_percent=driver.whole("sm_percent") if driver else None,
        reported=None if reported is None else _reported(reported),
    )


def _reported(fields: _Fields) -> SelfReported:
    return SelfReported(
        used_bytes=fields.count("used_bytes"),
        context_bytes=fields.count("context_bytes"),
        module_bytes=fields.count("module_bytes"),
        buffer_bytes=fields.count("buffer_bytes"),
        limit_bytes=fields.count("limit_bytes"),
        peak_bytes=fields.whole("peak_bytes"),
        refusals=fields.whole("refusals"),
        refused_bytes=fields.whole("refused_bytes"),
        gpu_ns=fields.whole("gpu_ns"),
        throttled_ns=fields.whole("throttled_ns"),
        launches=fields.whole("launches"),
        sm_percent=fields.whole("sm_percent"),
    )


def _process(fields: _Fields) -> ProcessUse:
    reported = fields.inner("self_reported")
    return ProcessUse(
        pid=fields.count("pid"),
        host_pid=fields.count("host_pid"),
        used_bytes=reported.each_count("used_bytes") if reported else (),
        counters=_counters(reported) if reported else (),
        gpu_ns=fields.each_whole("gpu_ns"),
    )


def _counters(fields: _Fields) -> tuple[ProcessCounters, ...]:
    """None of an agent that does not tell them."""
    names = ("peak_bytes", "refusals", "gpu_ns", "throttled_ns")
    lists = (fields.each_count(name) if fields.has(name) else () for name in names)
    return tuple(
        ProcessCounters(peak_bytes=peak, refusals=refusals, charged_ns=gpu, throttled_ns=throttled)
        for peak, refusals, gpu, throttled in zip(*lists, strict=False)
    )


def _refusal(fields: _Fields) -> Refusal:
    return Refusal(
        **{name: fields.count(name) for name in OF_REFUSAL}, function=fields.text("function")
    )


def _bypass(fields: _Fields) -> Bypass:
    told = {name: fields.text(name) for name in OF_BYPASS}
    return Bypass(
        kind=fields.word("kind", Kind),
        gpu=told["gpu"],
        pod_uid=told["pod_uid"],
        namespace=told["namespace"],
        pod=told["pod"],
        container=told["container"],
        pid=fields.count("pid"),
        program=told["program"],
        explained=told["explained"],
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "a text")
    return value


def _wrong(where: str, wanted: str) -> UnreadableUse:
    return UnreadableUse(
        f"the agent's answer cannot be read: {where or 'the document'} is not {wanted}; use the "
        "program that the agent is an instance of"
    )
