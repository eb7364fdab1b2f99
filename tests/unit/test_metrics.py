"""The pages of metrics: what is on them, in which form, and that nothing makes them endless."""

import re
from collections.abc import Callable
from dataclasses import replace

import metrics_pages
import prometheus_client.parser
import pytest
import use_pictures as pictures
from hypothesis import given
from hypothesis import strategies as st
from metrics_pages import FORMS, GOLDEN, OPENMETRICS, Form
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.adapters.metrics import Exposed, Metrics
from agent.adapters.metrics_rows import shown
from agent.adapters.metrics_text import (
    SELF_REPORTED,
    Family,
    Page,
    wants_openmetrics,
    written,
)
from agent.domain.accounting import (
    ContainerUse,
    DeviceUse,
    NodeUse,
    ProcessUse,
    SelfReported,
    Tier,
    Totals,
)
from agent.domain.bypass import Bypass, Kind
from agent.domain.region import ProcessCounters
from agent.domain.register import type_name

ALL = Form(file="", legacy=True, per_process=True)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"twice: Prometheus would refuse the page: {key}"
            found[key] = sample.value
    return found


def rendered(use: NodeUse, exposed: Exposed = Exposed(legacy=True, per_process=True)) -> Samples:  # noqa: B008
    metrics = Metrics(
        "1", pictures.Node(), use=lambda: use, exposed=exposed, clock=lambda: pictures.NOW_S
    )
    return samples(metrics.render("")[0].decode())


def of(found: Samples, name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {labels: value for (metric, labels), value in found.items() if metric == name}


# --- whole pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [pytest.param(form, id=form.file) for form in FORMS])
def test_a_page_is_as_it_was(form: Form) -> None:
    """`python -m tests.metrics_pages` writes them anew: look at what changed."""
    assert metrics_pages.page(form) == (GOLDEN / form.file).read_text(encoding="utf-8")


def test_openmetrics_says_the_same_and_is_well_formed() -> None:
    text = metrics_pages.page(replace(ALL, accept=OPENMETRICS))
    assert text.endswith("\n# EOF\n")
    assert text.count("# EOF") == 1
    strict = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in openmetrics_parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert strict == samples(metrics_pages.page(ALL))


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        pytest.param("", False, id="nothing"),
        pytest.param("*/*", False, id="curl"),
        pytest.param("text/plain;version=0.0.4", False, id="text"),
        pytest.param(OPENMETRICS, True, id="OpenMetrics"),
        pytest.param(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3",
            True,
            id="Prometheus 3",
        ),
        pytest.param("text/html, Application/OpenMetrics-Text", True, id="letters of any case"),
        pytest.param("application/openmetrics-text-not", False, id="another type"),
        pytest.param(",;,=;version", False, id="nonsense"),
    ],
)
def test_which_format_is_asked_for(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) == openmetrics
    body, content_type = metrics_pages.everything(ALL).render(accept)
    assert content_type.startswith("application/openmetrics" if openmetrics else "text/plain")
    assert body.endswith(b"# EOF\n") == openmetrics


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True), st.text()))
def test_any_label_survives_the_text(labels: dict[str, str]) -> None:
    labels = {
        name: value.replace("\r", "").encode("utf-8", "ignore").decode()
        for name, value in labels.items()
    }
    page = Page(openmetrics=False)
    page.add(Family("name", tuple(sorted(labels)), "Help."), [(written(labels), 1)])
    text = page.encoded().decode()
    assert len(text.splitlines()) >= 3
    assert text.count("\n") == 3
    [family] = text_string_to_metric_families(text)
    assert family.samples[0].labels == labels


@pytest.mark.parametrize("openmetrics", [False, True])
def test_help_is_one_line_with_any_characters_in_it(openmetrics: bool) -> None:
    page = Page(openmetrics=openmetrics)
    page.add(Family("name", (), 'Of "those"\nand \\ these.'), [("", 1)])
    text = page.encoded().decode() + ("# EOF\n" if openmetrics else "")
    parse = openmetrics_parser if openmetrics else prometheus_client.parser
    [family] = parse.text_string_to_metric_families(text)
    assert family.documentation == 'Of "those"\nand \\ these.'
    assert '\\"those' in text if openmetrics else ' "those' in text


# --- HAMi's names ------------------------------------------------------------------------------

HOST = {"node", "device_index", "device_uuid", "device_type", "zone"}
VGPU = {"namespace", "pod", "container", "vdevice_index", "device_uuid", "zone"}
OLD_HOST = {"deviceidx", "deviceuuid", "devicetype", "nodeid", "zone"}
OLD_VGPU = {"podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone"}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        pytest.param("hami_host_gpu_memory_used_bytes", HOST, 9 << 30, id="host memory"),
        pytest.param("hami_host_gpu_utilization_ratio", HOST, 83, id="0 to 100"),
        pytest.param(
            "hami_host_gpu_memory_controller_utilization_ratio", HOST, 41, id="memory controller"
        ),
        pytest.param("hami_host_gpu_temperature_celsius", HOST, 61, id="temperature"),
        pytest.param("hami_host_gpu_power_usage_watts", HOST, 187.5, id="power"),
        pytest.param("hami_host_gpu_ecc_errors_total", HOST | {"error_type"}, 12, id="ECC errors"),
        pytest.param("hami_vgpu_memory_used_bytes", VGPU, 5 << 30, id="used"),
        pytest.param("hami_vgpu_memory_limit_bytes", VGPU, 8 << 30, id="limit"),
        pytest.param("hami_container_device_memory_bytes", VGPU, 5 << 30, id="used, again"),
        pytest.param("hami_vgpu_memory_context_bytes", VGPU, 300 << 20, id="contexts"),
        pytest.param("hami_vgpu_memory_module_bytes", VGPU, 20 << 20, id="modules"),
        pytest.param("hami_vgpu_memory_buffer_bytes", VGPU, 4 << 30, id="buffers"),
        pytest.param("hami_container_device_utilization_ratio", VGPU, 29, id="share"),
        pytest.param("hami_container_last_kernel_elapsed_seconds", VGPU, 7, id="last kernel"),
        pytest.param(
            "hami_build_info",
            {"version", "revision", "build_date", "go_version", "compiler", "platform"},
            1,
            id="build",
        ),
        pytest.param("HostGPUMemoryUsage", OLD_HOST, 9 << 30, id="old: host memory"),
        pytest.param("HostCoreUtilization", OLD_HOST, 83, id="old: host"),
        pytest.param("vGPU_device_memory_usage_in_bytes", OLD_VGPU, 5 << 30, id="old: used"),
        pytest.param("vGPU_device_memory_limit_in_bytes", OLD_VGPU, 8 << 30, id="old: limit"),
        pytest.param(
            "Device_memory_desc_of_container",
            OLD_VGPU | {"context", "module", "data", "offset"},
            5 << 30,
            id="old: split",
        ),
        pytest.param("Device_utilization_desc_of_container", OLD_VGPU, 29, id="old: share"),
        pytest.param("Device_last_kernel_of_container", OLD_VGPU, 7, id="old: last kernel"),
    ],
)
def test_hamis_metrics(name: str, labels: set[str], value: float) -> None:
    found = of(samples(metrics_pages.page(ALL)), name)
    assert value in found.values()
    assert {frozenset(dict(one)) for one in found} == {frozenset(labels)}
    if "zone" in labels:
        assert {dict(one)["zone"] for one in found} == {"vGPU"}


@pytest.mark.parametrize(
    ("product", "told"),
    [
        pytest.param("NVIDIA A40", "NVIDIA A40", id="named NVIDIA"),
        pytest.param("Tesla T4", "NVIDIA-Tesla T4", id="not named NVIDIA"),
    ],
)
def test_a_gpu_has_the_type_that_its_scheduler_knows(product: str, told: str) -> None:
    """So that its metrics and those of the scheduler can be joined by `device_type`."""
    gpu = replace(pictures.EVERYTHING.gpus[0], name=product)
    found = rendered(NodeUse(gpus=(gpu,)))
    hosts = [dict(labels) for name, labels in found if name.startswith("hami_host_gpu_")]
    assert len(hosts) == 7  # five figures, and ECC errors of two kinds
    assert {one["device_type"] for one in hosts} == {told, type_name(product, "json")}
    [old] = of(found, "HostGPUMemoryUsage")
    assert dict(old)["devicetype"] == type_name(product, "csv9")


def test_the_device_of_a_container_is_cut_after_40_characters() -> None:
    [one] = pictures.EVERYTHING.containers[:1]
    device = replace(one.devices[0], uuid=one.devices[0].uuid + "-longer")
    use = NodeUse(containers=(replace(one, devices=(device,)),))
    [labels] = of(rendered(use), "hami_vgpu_memory_used_bytes")
    assert dict(labels)["device_uuid"] == pictures.GPUS[0]


@pytest.mark.parametrize(
    ("last_kernel_s", "expected"),
    [
        pytest.param(int(pictures.NOW_S) - 3, [3], id="a moment ago"),
        pytest.param(int(pictures.NOW_S) + 3, [0], id="in the future: another clock"),
        pytest.param(2**63 - 1, [0], id="forged"),
        pytest.param(0, [], id="none yet"),
        pytest.param(-5, [], id="before 1970"),
    ],
)
def test_when_the_last_kernel_was(last_kernel_s: int, expected: list[float]) -> None:
    one = replace(pictures.EVERYTHING.containers[1], last_kernel_s=last_kernel_s)
    found = rendered(NodeUse(containers=(one,)))
    for name in ("hami_container_last_kernel_elapsed_seconds", "Device_last_kernel_of_container"):
        assert list(of(found, name).values()) == expected


def test_old_names_and_processes_are_there_on_request_only() -> None:
    names = {name for name, _ in samples(metrics_pages.page(Form(file="")))}
    more = {name for name, _ in samples(metrics_pages.page(ALL))} - names
    old = {name for name in more if not name.startswith("vgpu_process_")}
    assert more - old
    assert old
    assert not any(re.match("vgpu_|hami_", name) for name in old)


# --- whose word it is --------------------------------------------------------------------------

FORGED = SelfReported(
    used_bytes=1, context_bytes=2, module_bytes=3, buffer_bytes=4, limit_bytes=5, peak_bytes=6,
    refusals=7, refused_bytes=8, gpu_ns=9, throttled_ns=10, launches=11, sm_percent=12,
)  # fmt: skip


def forged(container: ContainerUse) -> ContainerUse:
    """What a tenant can write: its region, which the counters and processes come from, too."""
    devices = (
        replace(
            device,
            reported=FORGED,
            totals=Totals(gpu_ns=9, throttled_ns=10, refusals=7, refused_bytes=8, launches=11),
        )
        for device in container.devices
    )
    counters = ProcessCounters(peak_bytes=1, refusals=2, charged_ns=3, throttled_ns=4)
    process = ProcessUse(
        pid=99, host_pid=0, used_bytes=(5, 5), counters=(counters, counters), gpu_ns=(3, 3)
    )
    return replace(container, devices=tuple(devices), processes=(process,), last_kernel_s=12)


def test_what_a_tenant_can_forge_is_marked() -> None:
    """Forging everything must change no metric that is not marked, and all that are."""
    use = pictures.EVERYTHING
    lies = replace(use, containers=tuple(forged(one) for one in use.containers))
    marked, names_in = set(), {}
    for name, form in (("truth", use), ("lies", lies)):
        metrics = Metrics(
            "1", pictures.Node(), use=lambda form=form: form, clock=lambda: pictures.NOW_S,
            exposed=Exposed(legacy=True, per_process=True),
        )  # fmt: skip
        text = metrics.render("")[0].decode()
        names_in[name] = samples(text)
        for family in text_string_to_metric_families(text):
            if family.documentation.startswith(SELF_REPORTED):
                marked |= {family.name, family.name + "_total"}
    truth, told = names_in["truth"], names_in["lies"]
    changed = {key[0] for key in truth.keys() | told.keys() if truth.get(key) != told.get(key)}
    changed = {name for name in changed if not name.startswith("process_")}
    assert changed <= marked
    assert {name for name, _ in told if name in marked} <= changed


# --- nothing of what is gone, and not without bound ---------------------------------------------


def test_a_vanished_pod_leaves_nothing() -> None:
    use = pictures.EVERYTHING
    alone = replace(use, containers=use.containers[:1])
    assert any("old" in dict(labels).values() for _, labels in rendered(use))
    assert not any("old" in dict(labels).values() for _, labels in rendered(alone))
    assert not any("pod" in dict(labels) for _, labels in rendered(NodeUse()))


def many(count: int, processes: int = 0) -> NodeUse:
    return pictures.crowd(1, count, max(1, processes))


@pytest.mark.parametrize(
    ("containers", "processes", "kept", "left_out"),
    [
        pytest.param(3, 2, (3, 6), (0, 0), id="all of them"),
        pytest.param(7, 1, (5, 5), (2, 0), id="too many containers"),
        pytest.param(2, 9, (2, 8), (0, 10), id="too many processes in one container"),
        pytest.param(5, 4, (5, 10), (0, 10), id="too many processes together"),
    ],
)
def test_there_is_an_end(
    containers: int, processes: int, kept: tuple[int, int], left_out: tuple[int, int]
) -> None:
    chosen = shown(
        many(containers, processes),
        per_process=True,
        max_devices=5,
        max_processes_each=4,
        max_processes=10,
    )
    assert (len(chosen.containers), sum(len(some) for _, some in chosen.processes)) == kept
    assert (chosen.containers_left_out, chosen.processes_left_out) == left_out


def test_what_is_left_out_is_told() -> None:
    use = many(4097, 65)
    metrics = Metrics("1", pictures.Node(), use=lambda: use, exposed=Exposed(per_process=True))
    lines = metrics.render("")[0].decode().splitlines()  # too many for a parser
    assert 'vgpu_metrics_left_out{kind="containers"} 1' in lines
    assert f'vgpu_metrics_left_out{{kind="processes"}} {4096 * 65 - 8192}' in lines
    assert sum(line.startswith("vgpu_container_info{") for line in lines) == 4096
    assert sum(line.startswith("vgpu_process_memory_used_bytes{") for line in lines) == 8192


def test_bypasses_have_an_end() -> None:
    found_by = [Bypass(kind=Kind.NO_GRANT, gpu="GPU-a", pod=f"pod-{n}") for n in range(300)]
    again = replace(found_by[0], pid=7)
    metrics = Metrics("1", pictures.Node(), bypasses=lambda: [*found_by, again])
    found = samples(metrics.render("")[0].decode())
    assert len(of(found, "vgpu_bypass")) == 256
    assert found["vgpu_metrics_left_out", frozenset({("kind", "bypasses")})] == 44


def test_a_long_version_is_cut() -> None:
    one = replace(pictures.EVERYTHING.containers[0], hook_version="9" * 1000)
    [labels] = of(rendered(NodeUse(containers=(one,))), "vgpu_container_info")
    assert dict(labels)["hook_version"] == "9" * 64


@pytest.mark.parametrize(
    "order", [pytest.param(1, id="newer last"), pytest.param(-1, id="newer first")]
)
def test_two_grants_of_one_name_are_one_container_that_which_lives(order: int) -> None:
    new = pictures.EVERYTHING.containers[0]
    old = replace(new, pod_uid="uid-0", processes=(), last_kernel_s=0, hook_version="old")
    found = rendered(NodeUse(containers=tuple([old, new][::order])))
    [labels] = of(found, "vgpu_container_info")
    assert dict(labels)["hook_version"] == new.hook_version
    assert found["vgpu_metrics_left_out", frozenset({("kind", "containers")})] == 1


def test_a_gpu_that_a_container_was_given_twice_is_there_once() -> None:
    one = pictures.EVERYTHING.containers[0]
    twice = tuple(replace(one.devices[0], place=place) for place in (0, 1))
    found = rendered(NodeUse(containers=(replace(one, devices=twice),)))
    assert len(of(found, "vgpu_container_memory_limit_bytes")) == 1
    assert len(of(found, "hami_vgpu_memory_limit_bytes")) == 2


def test_a_process_has_a_gpu_that_was_given_twice_once() -> None:
    [one] = device(reported=FORGED).containers
    twice = tuple(replace(one.devices[0], place=place) for place in (0, 1))
    both = (replace(one.processes[0], used_bytes=(5, 5)),)
    found = rendered(NodeUse(containers=(replace(one, devices=twice, processes=both),)))
    assert list(of(found, "vgpu_process_memory_used_bytes").values()) == [5]


def test_what_the_driver_says_of_a_process_with_two_entries_counts_once() -> None:
    """It executed a program beside its children: both hold memory, and have one pid on the node."""
    [one] = device(reported=FORGED).containers
    entry = replace(one.processes[0], host_pid=77, gpu_ns=(7_000_000_000,))
    found = rendered(NodeUse(containers=(replace(one, processes=(entry, entry)),)))
    assert list(of(found, "vgpu_process_memory_used_bytes").values()) == [10]
    assert list(of(found, "vgpu_process_gpu_seconds_total").values()) == [7]


COUNTERS = ProcessCounters(peak_bytes=500, refusals=2, charged_ns=3, throttled_ns=4_000_000_000)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vgpu_process_memory_used_bytes", 600),
        ("vgpu_process_memory_peak_bytes", 1000),
        ("vgpu_process_gpu_seconds_total", 7),
        ("vgpu_process_throttled_seconds_total", 8),
        ("vgpu_process_allocations_refused_total", 4),
    ],
)
def test_processes_of_one_pid_are_added_up(name: str, value: float) -> None:
    """Each pid namespace in a container has a 1; only the last process was there."""
    first = ProcessUse(
        pid=1, host_pid=0, used_bytes=(500,), counters=(COUNTERS,), gpu_ns=(7_000_000_000,)
    )
    second = replace(first, used_bytes=(100,), gpu_ns=(None,))
    [one] = device(reported=FORGED).containers
    found = rendered(NodeUse(containers=(replace(one, processes=(first, second)),)))
    assert list(of(found, name).values()) == [value]


def test_a_state_that_is_told_twice_is_there_once() -> None:
    metrics = Metrics("1", pictures.Node(pictures.STATES[:1] * 2))
    assert len(of(samples(metrics.render("")[0].decode()), "vgpu_container_enforced")) == 1


# --- what is absent ----------------------------------------------------------------------------


def device(**changes: object) -> NodeUse:
    """A container with a process."""
    whole = DeviceUse(place=0, uuid="GPU-a", memory_limit_bytes=1, core_permille=1)
    counters = ProcessCounters(peak_bytes=1, refusals=2, charged_ns=3, throttled_ns=4)
    return NodeUse(
        containers=(
            ContainerUse(
                pod_uid="u", namespace="n", pod="p", container="c", tier=Tier.HOOK,
                hook_version="", priority=1, state=None,
                devices=(replace(whole, **changes),),  # type: ignore[arg-type]
                processes=(ProcessUse(pid=7, host_pid=0, used_bytes=(5,), counters=(counters,)),),
            ),
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("use", "name"),
    [
        pytest.param(
            device(core_permille=0), "vgpu_container_core_limit_ratio", id="no core limit"
        ),
        pytest.param(
            device(memory_limit_bytes=0), "vgpu_container_memory_limit_bytes", id="no memory limit"
        ),
        pytest.param(device(), "vgpu_container_memory_used_bytes", id="nothing counted yet"),
        pytest.param(device(), "hami_vgpu_memory_used_bytes", id="nothing counted yet, HAMi"),
        pytest.param(device(), "vgpu_container_memory_driver_bytes", id="driver does not tell"),
        pytest.param(
            device(reported=replace(FORGED, gpu_ns=None)),
            "vgpu_container_gpu_seconds_total",
            id="a library without counters",
        ),
        pytest.param(device(), "vgpu_container_gpu_driver_ratio", id="no share by the driver"),
        *(
            pytest.param(device(), f"vgpu_container_{name}_total", id=f"nobody counts {name}")
            for name in ("gpu_seconds", "throttled_seconds", "allocations_refused", "launches")
        ),
        *(
            pytest.param(device(), f"vgpu_process_{name}", id=f"not counted: a process's {name}")
            for name in (
                "memory_used_bytes",
                "memory_peak_bytes",
                "gpu_seconds_total",
                "throttled_seconds_total",
                "allocations_refused_total",
            )
        ),
        pytest.param(
            device(reported=replace(FORGED, gpu_ns=None)),
            "vgpu_process_gpu_seconds_total",
            id="no share is kept",
        ),
        pytest.param(NodeUse(), "vgpu_use_timestamp_seconds", id="nothing looked at"),
    ],
)
def test_what_is_not_known_is_absent(use: NodeUse, name: str) -> None:
    assert of(rendered(use), name) == {}
    present = of(rendered(pictures.EVERYTHING), name)
    assert present


def test_without_a_core_limit_the_driver_says_how_busy_a_container_was() -> None:
    use = device(reported=replace(FORGED, gpu_ns=None, sm_percent=None), driver_sm_percent=41)
    for name, value in (
        ("hami_container_device_utilization_ratio", 41.0),
        ("Device_utilization_desc_of_container", 41.0),
        ("vgpu_container_gpu_driver_ratio", 0.41),
    ):
        assert list(of(rendered(use), name).values()) == [value]


def test_counters_stay_while_a_region_cannot_be_read() -> None:
    use = device(totals=Totals(gpu_ns=3_000_000_000))
    assert list(of(rendered(use), "vgpu_container_gpu_seconds_total").values()) == [3.0]


@pytest.mark.parametrize(
    ("count", "name", "labels"),
    [
        pytest.param(
            lambda metrics: metrics.bypass("no grant"),
            "vgpu_bypasses_total",
            {"kind": "no grant"},
            id="bypass",
        ),
        pytest.param(
            lambda metrics: metrics.limit_change("annotation", "refused"),
            "vgpu_limit_changes_total",
            {"source": "annotation", "outcome": "refused"},
            id="limit change",
        ),
    ],
)
def test_what_is_counted(
    count: Callable[[Metrics], None], name: str, labels: dict[str, str]
) -> None:
    metrics = Metrics("1", pictures.Node())
    for _ in range(3):
        count(metrics)
    found = samples(metrics.render("")[0].decode())
    assert found[name, frozenset(labels.items())] == 3
