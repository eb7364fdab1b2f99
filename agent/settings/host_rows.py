"""Rows of the table: kubelet, the host, devices, GPU health, Allocate, logs, compatibility."""

from agent.config import OneOf
from agent.settings import kinds
from agent.settings.kinds import XidList
from agent.settings.setting import (
    ALLOCATE,
    COMPATIBLE,
    DEVICES,
    HEALTH,
    KUBELET,
    OBSERVE,
    Setting,
)

_BUILT_IN = "13, 31, 43, 45, 68 and 109"

ROWS = (
    Setting(
        name="kubelet-socket",
        group=KUBELET,
        kind=kinds.PATH,
        field="kubelet_socket",
        env=("KUBELET_SOCKET",),
        help="Socket at which kubelet takes registrations; ours is made in the same directory. "
        "Kubelet's --root-dir does not move it.",
    ),
    Setting(
        name="pod-resources-socket",
        group=KUBELET,
        kind=kinds.PATH,
        field="pod_resources_socket",
        help="Socket at which kubelet tells what it has assigned; below its --root-dir.",
    ),
    Setting(
        name="hook-path",
        group=KUBELET,
        kind=kinds.PATH,
        field="hook_path",
        env=("HOOK_PATH",),
        help="Directory of `vgpu/` (library, preload file, container caches) as containers see it.",
    ),
    Setting(
        name="host-hook-path",
        group=KUBELET,
        kind=kinds.PATH,
        field="host_hook_path",
        value_text="the same as --hook-path",
        help="The same directory as the host sees it, when that is another one.",
    ),
    Setting(
        name="hami-library",
        group=KUBELET,
        kind=kinds.TEXT,
        field="hami_library",
        help="Whether a copy of the hook library has HAMi's name, libvgpu.so, in the host's "
        "directory: where there is none or an older one of ours (missing), also in place of "
        "another file (replace), or never (off).",
    ),
    Setting(
        name="vgpulock-dir",
        group=KUBELET,
        kind=kinds.PATH,
        field="lock_dir",
        help="Host directory that containers see as /tmp/vgpulock. One below the hook's directory "
        "is closed to other users of the host, who elsewhere could run what root of a container "
        "leaves there as a set-uid program; the manifests and the unit name such a one.",
    ),
    Setting(
        name="state-dir",
        group=KUBELET,
        kind=kinds.PATH,
        field="state_dir",
        help="Where the agent remembers its grants and keeps the lock against a second agent.",
    ),
    Setting(
        name="cache-gc-after",
        group=KUBELET,
        kind=kinds.DURATION,
        field="cache_gc_after_s",
        env=("HAMI_RESYNC_INTERVAL",),
        help="Age, since its last change, at which the cache directory of a pod that is gone is "
        "deleted.",
    ),
    Setting(
        name="cache-gc-interval",
        group=KUBELET,
        kind=kinds.DURATION,
        field="cache_gc_every_s",
        help="How often to look for such directories.",
    ),
    Setting(
        name="host-proc",
        group=KUBELET,
        kind=kinds.PATH,
        field="host_proc",
        help="A /proc that shows the processes of pods: the agent's own with hostPID: true, else "
        "the host's, mounted.",
    ),
    Setting(
        name="kernel-memory-limits",
        group=KUBELET,
        kind=kinds.SWITCH,
        field="kernel_limits",
        help="Have the kernel limit containers' GPU memory as well, by their cgroups, where the "
        "driver offers that (r615 and later). Nothing in a container gets round such a limit.",
    ),
    Setting(
        name="host-cgroup",
        group=KUBELET,
        kind=kinds.PATH,
        field="host_cgroup",
        help="Where the host's cgroup v2 file system is mounted, for --kernel-memory-limits.",
    ),
    Setting(
        name="process-interval",
        group=KUBELET,
        kind=kinds.DURATION,
        field="process_every_s",
        help="How often containers with vGPUs are looked at: are their limits kept, and what are "
        "their processes' pids on the node?",
    ),
    Setting(
        name="device-list-strategy",
        group=DEVICES,
        kind=kinds.WORDS,
        field="device_list_strategy",
        env=("DEVICE_LIST_STRATEGY",),
        nvidia="flags.plugin.deviceListStrategy",
        help="How the container runtime learns of the GPUs: by NVIDIA_VISIBLE_DEVICES (envvar), by "
        "mounts below /var/run/nvidia-container-devices (volume-mounts), or by CDI names, in "
        "annotations or in the CRI's own field (kubelet 1.28 and later), for which the agent "
        "writes CDI files. Several may be given.",
    ),
    Setting(
        name="device-id-strategy",
        group=DEVICES,
        kind=kinds.TEXT,
        field="device_id_strategy",
        env=("DEVICE_ID_STRATEGY",),
        nvidia="flags.plugin.deviceIDStrategy",
        help="How GPUs are named to the runtime.",
    ),
    Setting(
        name="pass-device-specs",
        group=DEVICES,
        kind=kinds.SWITCH,
        field="pass_device_specs",
        env=("PASS_DEVICE_SPECS",),
        nvidia="flags.plugin.passDeviceSpecs",
        help="Also name the device nodes to kubelet, so that a later cgroup update (static CPU "
        "manager, systemd reload) does not take the GPU away.",
    ),
    Setting(
        name="nvidia-driver-root",
        group=DEVICES,
        kind=kinds.PATH,
        field="driver_root",
        aliases=("driver-root",),
        env=("NVIDIA_DRIVER_ROOT",),
        nvidia="flags.nvidiaDriverRoot",
        help="Where the driver is installed on the host.",
    ),
    Setting(
        name="dev-root",
        group=DEVICES,
        kind=kinds.PATH,
        field="dev_root",
        aliases=("nvidia-dev-root",),
        env=("NVIDIA_DEV_ROOT",),
        nvidia="flags.nvidiaDevRoot",
        value_text="the same as --nvidia-driver-root",
        help="Where the host's /dev with the GPUs is.",
    ),
    Setting(
        name="gdrcopy-enabled",
        group=DEVICES,
        kind=kinds.SWITCH,
        field="gdrcopy_enabled",
        env=("GDRCOPY_ENABLED",),
        nvidia="flags.gdrcopyEnabled",
        help="Ask the runtime for GPUDirect RDMA copies (NVIDIA_GDRCOPY=enabled).",
    ),
    Setting(
        name="gds-enabled",
        group=DEVICES,
        kind=kinds.SWITCH,
        field="gds_enabled",
        env=("GDS_ENABLED",),
        nvidia="flags.gdsEnabled",
        help="Ask the runtime for GPUDirect storage (NVIDIA_GDS=enabled).",
    ),
    Setting(
        name="mofed-enabled",
        group=DEVICES,
        kind=kinds.SWITCH,
        field="mofed_enabled",
        env=("MOFED_ENABLED",),
        nvidia="flags.mofedEnabled",
        help="Ask the runtime for Mellanox devices (NVIDIA_MOFED=enabled).",
    ),
    Setting(
        name="fail-on-init-error",
        group=HEALTH,
        kind=kinds.SWITCH,
        field="fail_on_init_error",
        env=("FAIL_ON_INIT_ERROR",),
        nvidia="flags.failOnInitError",
        by_mode={"nvidia": True},
        help="Exit when there is no NVIDIA driver, instead of waiting for one.",
    ),
    Setting(
        name="disable-healthchecks",
        group=HEALTH,
        kind=kinds.XIDS,
        env=("DP_DISABLE_HEALTHCHECKS",),
        value=XidList(),
        value_text="none",
        help="XIDs that never make a GPU unhealthy, besides those that applications cause "
        f"({_BUILT_IN}). all: every XID; what --enable-healthchecks lists still counts.",
    ),
    Setting(
        name="enable-healthchecks",
        group=HEALTH,
        kind=kinds.XIDS,
        env=("DP_ENABLE_HEALTHCHECKS",),
        value=XidList(),
        value_text="none",
        help="XIDs that count after all; stronger than --disable-healthchecks and than the "
        "built-in list. all: every XID.",
    ),
    Setting(
        name="recovery-probes",
        group=HEALTH,
        kind=kinds.WHOLE,
        field="recovery_probes",
        help="Clean probes in a row that make an unhealthy GPU healthy again; a GPU that keeps "
        "relapsing needs more.",
    ),
    Setting(
        name="probe-interval",
        group=HEALTH,
        kind=kinds.DURATION,
        field="probe_every_s",
        help="How often every GPU is probed and the list of GPUs is read anew.",
    ),
    Setting(
        name="allocate-budget",
        group=ALLOCATE,
        kind=kinds.DURATION,
        field="allocate_budget_s",
        help="Longest time an Allocate may take before it is refused: kubelet itself would wait "
        "for ever, and no other pod of the node would start meanwhile. Operating mode mig: 30 s at "
        "least, as the driver takes its time to make instances.",
    ),
    Setting(
        name="metrics-bind-address",
        group=OBSERVE,
        kind=kinds.LISTEN,
        field="metrics_address",
        help="Where /healthz, /readyz and /metrics are served.",
    ),
    Setting(
        name="ready-standing-by",
        group=OBSERVE,
        kind=kinds.SWITCH,
        field="ready_standing_by",
        help="/readyz is well, too, while another agent serves this node and this one only waits "
        "to take over, as a DaemonSet with maxSurge has them for a moment.",
    ),
    Setting(
        name="log-level",
        group=OBSERVE,
        kind=kinds.LEVEL,
        field="log_level",
        aliases=("v",),
        help="Least severe events that are written. `-v N` is understood as klog does: from 4 on, "
        "debug.",
    ),
    Setting(
        name="log-format",
        group=OBSERVE,
        kind=kinds.TEXT,
        field="log_format",
        help="Shape of the log: logfmt, json, journal (logfmt with priorities); auto is journal "
        "under systemd, otherwise logfmt.",
    ),
    Setting(
        name="enable-get-preferred-allocation",
        group=COMPATIBLE,
        kind=kinds.SWITCH,
        node="enablegetpreferredallocation",
        value=True,
        help="Answer kubelet's GetPreferredAllocation so that its books agree with the scheduler.",
        unused="it is always answered",
    ),
    Setting(
        name="device-discovery-strategy",
        group=COMPATIBLE,
        kind=kinds.TEXT,
        env=("DEVICE_DISCOVERY_STRATEGY",),
        nvidia="flags.deviceDiscoveryStrategy",
        value="auto",
        only=OneOf(
            ("auto", "nvml"),
            others={"tegra": "this version finds GPUs through NVML alone; use nvml"},
        ),
        help="How GPUs are found.",
        unused="GPUs are always found through NVML",
    ),
    Setting(
        name="node-mig-strategy",
        group=COMPATIBLE,
        kind=kinds.TEXT,
        node="migstrategy",
        value="none",
        help="MIG strategy in HAMi's node override.",
        unused="HAMi reads it there and does not use it; --mig-strategy decides",
    ),
)
