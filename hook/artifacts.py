# ruff: noqa: INP001 - a build script beside the sources, not a package
"""What is built of the C of this directory: which files of which sources, and with which flags."""

from dataclasses import dataclass

GLIBC = "2.17"  # the oldest container that the hook must load in (CentOS 7)
ARCHITECTURES = ("x86_64", "aarch64")

C_FLAGS = (
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fno-sanitize=undefined",  # zig adds traps that would end somebody else's process
    "-fno-asynchronous-unwind-tables",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wvla",
    "-Werror",
    "-g0",
    "-s",
)
LINK_FLAGS = (
    "-Wl,-z,defs",
    "-Wl,-z,now",
    "-Wl,-z,relro",
    "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu",  # glibc reads no other where there is one
    "-Wl,--gc-sections",
    "-lpthread",
    "-ldl",
)
# By which the caller of a function is found where an exception or the end of a cancelled thread
# passes: of all functions; or of those that either may pass, which are all but those that the
# compiler knows to be left by returning alone: they call through no pointer, and nothing that its
# headers do not declare to be so (tests/hook/test_unwind_tables.py). The room is better used for
# speed. What cleans up by a handler of its own would need a library of C++ for that.
ALL_TABLES = ("-funwind-tables",)
NEEDED_TABLES = ("-fno-unwind-tables", "-fexceptions")
DECLARED_OTHERWISE = frozenset(
    {"dlopen.c", "dlsym.c"}
)  # libc's header says so of its dlsym, not of ours
LIBRARY_FLAGS = ("-shared", "-Wl,-Bsymbolic")

# As small as it goes: zig takes its own -Oz for -Os, so clang is told past it. A comparison of
# bytes stays memcmp, which late.c finds. As the others may make bcmp of it, none of these becomes
# part of one of those: the file would be larger than it may be.
SMALLEST = ("-Os", "-Xclang", "-Oz", "-fno-builtin-bcmp")
FAST = ("-O2", "-fomit-frame-pointer")
# All files are optimised as one when they are linked, each function as its file's flags say: 5 KiB
# less for aarch64, and calls between files cost no more than those within one.
WHOLE = "-flto"

LIBRARY = (
    "amounts.c",
    "await.c",
    "beside.c",
    "blocks.c",
    "brief.c",
    "busy.c",
    "charge.c",
    "contexts.c",
    "counters.c",
    "credit.c",
    "cuda_array.c",
    "cuda_capture.c",
    "cuda_context.c",
    "cuda_graph_memory.c",
    "cuda_launch.c",
    "cuda_memory.c",
    "cuda_module.c",
    "cuda_pool.c",
    "cuda_start.c",
    "cuda_stream.c",
    "cuda_view.c",
    "cuda_vmm.c",
    "depth.c",
    "devices.c",
    "dlopen.c",
    "dlsym.c",
    "event_cost.c",
    "figures.c",
    "gpu_clock.c",
    "gpu_cost.c",
    "gpu_lane.c",
    "gpu_poll.c",
    "gpu_probe.c",
    "gpu_read.c",
    "gpu_sweep.c",
    "gpu_time.c",
    "gpu_watch.c",
    "graph_launches.c",
    "graph_left.c",
    "graphs.c",
    "guesses.c",
    "late.c",
    "launch_budget.c",
    "launch_cost.c",
    "launch_gate.c",
    "launch_count.c",
    "launch_wait.c",
    "leases.c",
    "ledger.c",
    "limits.c",
    "limits_file.c",
    "loaded.c",
    "log.c",
    "looks.c",
    "monotonic.c",
    "names.c",
    "nvml_memory.c",
    "nvml_place.c",
    "nvml_processes.c",
    "nvml_stride.c",
    "nvml_utilization.c",
    "overhead.c",
    "past.c",
    "pool_driver.c",
    "pooled.c",
    "pools.c",
    "proc_address.c",
    "process.c",
    "real.c",
    "rebind.c",
    "reclaim.c",
    "refusals.c",
    "region.c",
    "region_content.c",
    "region_file.c",
    "region_own.c",
    "region_places.c",
    "region_slots.c",
    "reserve.c",
    "residency.c",
    "settings.c",
    "spare.c",
    "streams.c",
    "table.c",
    "threads.c",
    "throttle.c",
    "vmm.c",
    "worked.c",
    "wrap.c",
)

# What a program runs at every launch, and at every allocation and free.
PER_CALL = frozenset(
    {
        "blocks.c",
        "brief.c",
        "charge.c",
        "cuda_launch.c",
        "cuda_memory.c",
        "devices.c",
        "launch_gate.c",
        "ledger.c",
        "region_own.c",
        "wrap.c",
    }
)

# Short ones that such calls go through: for size, but not at any cost in speed.
SHORT = frozenset({"depth.c", "launch_count.c"})

# All others run beside driver calls that take microseconds, or once; and lookups, which take some
# ns more by that.
SELDOM = frozenset(LIBRARY) - PER_CALL - SHORT


@dataclass(frozen=True)
class Artifact:
    """One file to build: its place under the output directory, its sources, its extra flags.

    Sources that are not `fast` are compiled for size, `seldom` ones whatever it costs in speed;
    with None all are for speed.
    `tables`: of which functions there are unwind tables.
    """

    path: str
    sources: tuple[str, ...]
    flags: tuple[str, ...] = ()
    fast: frozenset[str] | None = None
    seldom: frozenset[str] = frozenset()
    tables: tuple[str, ...] = ALL_TABLES


ARTIFACTS = (
    Artifact(
        "libvgpu.so",
        LIBRARY,
        (
            *LIBRARY_FLAGS,
            "-Wl,-z,nodelete",  # what fork, exit and threads call is still there after dlclose
            "-Wl,-soname,libvgpu.so",
            "-Wl,--version-script=libvgpu.map",
        ),
        fast=PER_CALL,
        seldom=SELDOM,
        tables=NEEDED_TABLES,
    ),
    Artifact(
        "sim/libnvidia-ml.so.1",
        (
            "sim/mig_profiles.c",
            "sim/mig_state.c",
            "sim/node.c",
            "sim/node_execution.c",
            "sim/node_parse.c",
            "sim/node_words.c",
            "sim/memory.c",
            "process.c",
            "sim/clock.c",
            "sim/engine.c",
            "sim/execution_state.c",
            "sim/gpu_time.c",
            "sim/nvml_call.c",
            "sim/nvml_compute_instances.c",
            "sim/nvml_devices.c",
            "sim/nvml_events.c",
            "sim/nvml_limits.c",
            "sim/nvml_mig.c",
            "sim/nvml_mig_handles.c",
            "sim/nvml_mig_instances.c",
            "sim/nvml_mig_mode.c",
            "sim/nvml_topology.c",
            "sim/nvml_usage.c",
        ),
        (*LIBRARY_FLAGS, "-Wl,-soname,libnvidia-ml.so.1"),
    ),
    Artifact(
        "sim/libcuda.so.1",
        (
            "process.c",
            "sim/captures.c",
            "sim/clock.c",
            "sim/contents.c",
            "sim/cuda_array.c",
            "sim/cuda_call.c",
            "sim/cuda_capture.c",
            "sim/cuda_contexts.c",
            "sim/cuda_copy.c",
            "sim/cuda_devices.c",
            "sim/cuda_event.c",
            "sim/cuda_external.c",
            "sim/cuda_function.c",
            "sim/cuda_graph.c",
            "sim/cuda_graph_exec.c",
            "sim/cuda_green.c",
            "sim/cuda_launch.c",
            "sim/cuda_lookup.c",
            "sim/cuda_memory.c",
            "sim/cuda_module.c",
            "sim/cuda_multicast.c",
            "sim/cuda_pointer.c",
            "sim/cuda_pool.c",
            "sim/cuda_pool_memory.c",
            "sim/cuda_resource.c",
            "sim/cuda_stream.c",
            "sim/cuda_vmm.c",
            "sim/engine.c",
            "sim/execution.c",
            "sim/execution_state.c",
            "sim/gpu_time.c",
            "sim/graph_memory.c",
            "sim/graphs.c",
            "sim/memory.c",
            "sim/mig_profiles.c",
            "sim/mig_state.c",
            "sim/node.c",
            "sim/node_execution.c",
            "sim/node_parse.c",
            "sim/node_words.c",
        ),
        (*LIBRARY_FLAGS, "-Wl,-soname,libcuda.so.1", "-lm"),
    ),
    Artifact("sim/sim-tenant", ("sim/sim_tenant.c",)),
    Artifact(
        "sim/sim-gpu-tenant",
        ("sim/sim_gpu_phase.c", "sim/sim_gpu_tenant.c", "sim/virtual_time.c"),
        ("-rdynamic", "-fvisibility=default"),  # its time functions are for its libraries, too
    ),
    Artifact("sim/sim-container", ("sim/sim_container.c",)),
)


def flags_of(artifact: Artifact, source: str) -> list[str]:
    """How one source is compiled for an architecture, whatever machine compiles it."""
    if artifact.fast is None or source in artifact.fast:
        pace: tuple[str, ...] = FAST
    else:
        pace = SMALLEST if source in artifact.seldom else ("-Os",)
    flags = [word for flag in C_FLAGS for word in (pace if flag == "-O2" else (flag,))]
    return [*flags, *(ALL_TABLES if source in DECLARED_OTHERWISE else artifact.tables)]
