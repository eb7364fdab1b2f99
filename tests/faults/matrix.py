"""Every fault that the agent is said to survive, the scenarios that run it, and what checks them.

A scenario is a test function (all of its cases). `open` says what of the fault is not tried here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

INVARIANTS = "tests/faults/invariants.py: budgets, capacity, half-written files"
RELEASED = INVARIANTS + ", release"
COUNTED = ", counters only go on"
REAL = "tests/cluster/test_ends_and_restarts.py has a real one"
NO_KUBELET, NO_API = f"kubelet is a stand-in; {REAL}", f"the API server is a stand-in; {REAL}"
LIAR = "the API server is a stand-in"
WHOLE = f"registered again, the lock released, a new pod gets exactly its claim (`serves`); {INVARIANTS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault."""

    group: str
    fault: str
    tests: tuple[str, ...]
    checker: str
    open: str = ""


def _rows(folder: str, *rows: tuple[str, ...]) -> Iterator[Row]:
    for group, fault, tests, checker, *left in rows:
        named = tuple(f"{folder}/{test}" for test in tests.split())
        yield Row(group=group, fault=fault, tests=named, checker=checker, open="".join(left))


KILLED, OTHERS, CLOCK = "test_killed_agent.py", "test_others_restart.py", "test_clock.py"
LIES, HOST, KUBELET = "test_lying_api.py", "test_host_faults.py", "test_kubelet_faults.py"
API = "test_api_faults.py"

ROWS: tuple[Row, ...] = (
    *_rows(
        "tests/faults",
        ("agent", "kill -9 at every write boundary of a bind", f"{KILLED}::test_while_a_pod_is_bound", RELEASED + COUNTED),
        ("agent", "kill -9 at every write boundary of a start", f"{KILLED}::test_while_it_starts_on_a_new_host", INVARIANTS),
        ("agent", "kill -9 at every write boundary of a stop", f"{KILLED}::test_while_it_stops", INVARIANTS),
        ("agent", "kill -9 at every write boundary of a change of limits", f"{KILLED}::test_while_limits_are_changed", RELEASED),
        ("agent", "kill -9 at every write boundary of a refusal", f"{KILLED}::test_while_a_refused_pod_is_taken_back", RELEASED),
        ("agent", "kill -9 at every write boundary of the cleaning up", f"{KILLED}::test_while_a_pod_that_is_gone_is_cleaned_up", RELEASED),
        ("agent", "kill -9 again, at every write boundary of the recovery from a bind that was killed",
         "test_killed_again.py::test_while_it_recovers", f"{WHOLE}, release", "the first kill is at four boundaries of the bind"),
        ("agent", "kill -9 while it takes away what lies about, and while it opens a directory again",
         "test_killed_keeping_house.py::test_what_lies_about_is_taken_away test_killed_keeping_house.py::test_a_directory_is_opened_again", WHOLE),
        ("agent", "kill -9 while another limits file takes the place of a container's, and when its pod goes",
         "test_killed_keeping_house.py::test_a_limits_file_is_exchanged", WHOLE),
        ("agent", "kill -9 while it is uninstalled", "test_killed_keeping_house.py::test_uninstall_is_killed", WHOLE, "where CDI files are removed"),
        ("agent", "kill -9 while MPS begins and ends", "test_killed_keeping_house.py::test_mps_begins_and_ends",
         "the daemon has the GPUs that are named, or there is none"),
        ("agent", "kill -9 while a process is told its pid", "test_killed_keeping_house.py::test_a_pid_is_told", WHOLE),
        ("agent", "kill -9 at every write boundary while a GPU is divided, and is one again", "test_killed_while_dividing.py::test_while_instances_are_made_and_taken_back", INVARIANTS),
        ("kubelet", "restart at every write boundary of a bind, books lost or not", f"{OTHERS}::test_kubelet_restarts_while_a_pod_is_bound", RELEASED + COUNTED,
         NO_KUBELET),
        ("API server", "restart at every write boundary of a bind", f"{OTHERS}::test_the_api_server_restarts_while_a_pod_is_bound", RELEASED + COUNTED,
         NO_API),
        ("API server", "nonsense instead of answers", f"{LIES}::test_nonsense_is_survived", INVARIANTS, LIAR),
        ("API server", "hostile claims", f"{LIES}::test_a_hostile_annotation_is_a_clear_refusal", WHOLE, LIAR),
        ("API server", "hostile pods beside", f"{LIES}::test_hostile_objects_of_others_harm_nobody", WHOLE, LIAR),
        ("NVML", "hangs for 60 s", "test_driver.py::test_it_hangs_for_a_minute", INVARIANTS),
        ("NVML", "each error of each of six calls", "test_driver.py::test_each_error_of_a_call", INVARIANTS,
         "the other calls of NVML that the agent makes"),
        ("clock", "the clock of the day jumps by an hour, forward, back, to and fro; the machine sleeps",
         f"{CLOCK}::test_clocks_jump_while_pods_run", INVARIANTS + COUNTED),
        ("API server", "away for an hour of the agent's clocks", "test_an_hour_away.py::test_the_api_server_is_away_for_an_hour", WHOLE,
         f"clocks and waits run 60 times as fast; gRPC's own threads wait by the kernel's clock; {LIAR}"),
    ),
    *_rows(
        "tests/e2e",
        ("kubelet", "restart, absence, crashed registration, socket deleted, directory replaced, checkpoint deleted or spoilt",
         f"{KUBELET}::test_kubelet_faults", WHOLE, NO_KUBELET),
        ("kubelet", "restart before, during and after Allocate",
         f"{KUBELET}::test_kubelet_faults {KUBELET}::test_kubelet_is_restarted_while_it_waits_for_an_answer {KUBELET}::test_an_allocate_after_a_lost_checkpoint_gets_the_same_answer", WHOLE,
         NO_KUBELET),
        ("agent", "random histories with kills and restarts of all three", "test_history.py::test_whatever_happens_everybody_gets_exactly_his_own",
         "each admitted container has its own claim, after every step", f"kubelet and API server are stand-ins; {REAL}"),
        ("agent", "counters across kill -9", "test_accounting.py::test_counters_only_go_on_when_the_agent_is_killed_and_the_tenant_lies", "counters only go on"),
        ("agent", "two agents on a node", f"{KUBELET}::test_two_agents_on_one_node", WHOLE),
        ("API server", "restart, lost history, 410, 429, 5xx, lost answers",
         f"{API}::test_api_server_faults {API}::test_writes_of_a_bind_fail", WHOLE, NO_API),
        ("API server", "away during Allocate and at the start",
         f"{API}::test_the_api_server_is_down_during_allocate {API}::test_the_api_server_is_down_at_the_start", WHOLE, NO_API),
        ("API server", "slow by 30 s: reads, watches and writes", f"{API}::test_the_api_server_answers_too_late", WHOLE, LIAR),
        ("API server", "stale reads", f"{API}::test_stale_reads", WHOLE, LIAR),
        ("API server", "duplicate and late events", f"{API}::test_doubled_and_late_events", WHOLE, LIAR),
        ("API server", "the scheduler's clock an hour off", f"{API}::test_the_schedulers_clock_is_wrong", WHOLE, "the scheduler is a stand-in"),
        ("disk", "full and read-only, at several places", f"{HOST}::test_a_bad_disk_is_a_clear_refusal", "a refusal in words, nothing half made stays"),
        ("host", "a directory is deleted behind the pod's mount of it", f"{HOST}::test_a_directory_is_deleted_on_the_host_behind_its_mount",
         f"it ends, and started anew: {WHOLE}", "one that is renamed away is not seen"),
        ("disk", "EIO and slow fsync", f"{HOST}::test_a_disk_that_fails_or_dawdles", "a refusal in words, nothing half made stays",
         "EIO is the answer of fsync and fdatasync alone, not of open, read, write or rename"),
        ("region file", "pipe, link, hard link, holes", "test_enforcement.py::test_a_region_that_is_exchanged_harms_nobody_else", "the agent is alive and says so"),
        ("NVML", "missing at the start", f"{HOST}::test_no_driver_at_the_start_is_waited_for", WHOLE),
        ("NVML", "gone and back", f"{HOST}::test_the_driver_dies_and_comes_back", WHOLE),
        ("NVML", "errors", f"{HOST}::test_every_error_of_the_driver_is_survived", WHOLE),
        ("NVML", "hangs", f"{HOST}::test_a_hanging_driver_blocks_nobody", WHOLE),
        ("NVML", "a GPU falls off the bus", f"{HOST}::test_a_gpu_falls_off_the_bus", WHOLE),
        ("NVML", "renumbering", f"{HOST}::test_gpus_are_renumbered", f"what is gone is unhealthy; {WHOLE}"),
        ("NVML", "wrong version: upgraded under the agent", f"{HOST}::test_the_driver_is_upgraded_under_us", WHOLE),
    ),
    *_rows(
        "tests/hook",
        ("tenants", "kill -9 in the middle of starts, allocations and changes",
         "test_processes.py::test_two_hundred_killed_in_the_middle_of_everything_leave_nothing test_accounting.py::test_a_killed_process_in_the_middle_of_everything_does_not_stop_the_others",
         "the ledger against the simulated driver", "at random moments"),
        ("tenants", "kill -9 at instructions of the library: first use of CUDA, allocation, pool, module, launch under a limit, end of the program",
         "test_killed_at_each_instruction.py::test_whoever_is_killed_leaves_nothing",
         "another one goes on after each; ledger and places as before", "of up to 2,500 instructions each is tried, of the first use and of launches each third to seventh"),
        ("tenants", "kill -9 at instructions of the library while the region is made",
         "test_killed_at_each_instruction.py::test_whoever_is_killed_while_the_region_is_made_spoils_it_for_nobody",
         "the next one starts and has all of the memory", "each third instruction"),
        ("tenants", "all of them killed at once", "test_accounting.py::test_all_of_them_killed_leave_nothing_behind", "the ledger is empty"),
        ("tenants", "one holds the region's lock", "test_region_file.py::test_who_keeps_the_file_locked_stops_nobody", "others go on"),
        ("tenants", "stopped in the middle of a change", "test_processes.py::test_stopped_in_the_middle_of_a_change_they_hold_nobody_up", "others go on"),
        ("region file", "truncated, foreign, other versions, link", "test_region_file.py::test_a_file_is_made_or_taken_over_or_cuda_does_not_start", "CUDA starts with a right one or not at all"),
        ("region file", "1024 slots full", "test_region_file.py::test_a_process_more_than_there_are_places_for_is_refused", "the one too many is refused"),
        ("region file", "pid reuse, clash of pid namespaces", "test_slots.py::test_only_the_dead_lose_their_slot", "only the dead lose their slot"),
        ("region file", "a full disk", "test_region_file.py::test_a_full_disk_stops_cuda_and_not_the_program test_region_file.py::test_a_disk_that_is_full_later_ends_nobody", "the program lives"),
        ("tenants", "fork bombs of CUDA processes", "test_accounting.py::test_a_hundred_racing_processes_never_exceed_the_limit", "the limit holds to the byte", "a hundred at once, not a bomb without end"),
    ),
    *_rows(
        "tests/wire",
        ("agent", "kill -9 at every line that changes limits", "test_live_limits.py::test_killed_at_every_step_a_change_is_whole_or_was_never_made", "the old limits or the new, on all GPUs"),
        ("region file", "every byte all ones, any content",
         "test_region_reader.py::test_what_is_no_region_is_named test_region_reader.py::test_any_region_is_read_as_its_bytes_are test_region_reader.py::test_any_bytes_are_an_answer test_region_reader.py::test_past_finds",
         "read or refused, never a crash"),
        ("region file", "spoilt by a tenant that has to wait", "test_spoilt_regions.py::test_it_waits_by_its_limits_file", "it waits by its limits file"),
        ("host", "systemd daemon-reload where devices have no links: named before it takes them from containers",
         "test_doctor.py::test_a_reload_that_would_take_gpus_away_is_named", "doctor names it, with the command that mends it",
         "the loss itself: no container runtime here gives a container's devices to systemd"),
        ("tenants", "an agent that dies while it blocks them", "test_block_guard.py::test_a_tenant_with_hami_cores_library_waits_and_resumes", "they go on"),
    ),
    *_rows(
        "tests/soak",
        ("agent", "days of pods, XIDs and restarts of everything, in virtual time", "test_soak.py::test_a_day",
         "books of every container at the end of the day; memory, descriptors",
         "a day of them here, thirty in [soak](soak.md); services in one process, which have no threads"),
        ("agent", "pods come and go, restarts of kubelet and API server, scrapes of /metrics", "test_process.py::test_pods_and_restarts_leave_nothing_in_the_process",
         f"threads, descriptors and memory of the process as before; {RELEASED}{COUNTED}", f"thirty rounds; {LIAR}, and so is kubelet"),
    ),
    *_rows(
        "tests/unit",
        ("host", "cgroups of version 1 and 2, by both drivers", "test_proc_text.py::test_the_pod_of_a_cgroup", "the pod is found",
         "lines of /proc/PID/cgroup are parsed; tests/e2e/test_metrics.py makes cgroups, of the version that its machine has"),
    ),
)  # fmt: skip
