"""Rows of the table: what NVIDIA's device plugin has, by its names."""

from agent.settings import kinds
from agent.settings.setting import DEVICES, NVIDIA, Setting

ROWS = (
    Setting(
        name="cdi-annotation-prefix",
        group=DEVICES,
        kind=kinds.TEXT,
        field="cdi_annotation_prefix",
        env=("CDI_ANNOTATION_PREFIX",),
        nvidia="flags.plugin.cdiAnnotationPrefix",
        help="Prefix of CDI annotations, for a runtime that is told to read another one.",
    ),
    Setting(
        name="cdi-spec-dir",
        group=DEVICES,
        kind=kinds.PATH,
        field="cdi_spec_dir",
        help="Directory of the host in which runtimes look for CDI files, and in which the agent "
        "writes its own when a CDI strategy is set.",
    ),
    Setting(
        name="nvidia-cdi-hook-path",
        group=DEVICES,
        kind=kinds.PATH,
        field="cdi_hook_path",
        aliases=("nvidia-ctk-path",),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        nvidia="flags.plugin.nvidiaCTKPath",
        value_text="none: CDI files name no program",
        help="nvidia-cdi-hook or nvidia-ctk of the host. With it CDI files have runtimes make "
        "links and refresh the library cache in containers; without it libraries are mounted "
        "under each of their names, which images need whose library directories are not the "
        "host's to be told of by LD_LIBRARY_PATH.",
    ),
    Setting(
        name="cdi-disable-hooks",
        group=DEVICES,
        kind=kinds.WORDS,
        field="cdi_disabled_hooks",
        env=("CDI_DISABLE_HOOKS",),
        value_text="none",
        help="Hooks that CDI files do not name: create-symlinks, update-ldcache, all.",
    ),
    Setting(
        name="cdi-feature-flags",
        group=DEVICES,
        kind=kinds.WORDS,
        env=("CDI_FEATURE_FLAGS",),
        value=(),
        value_text="none",
        help="Flags of NVIDIA's own generator of CDI files.",
        unused="the agent writes CDI files by itself",
    ),
    Setting(
        name="driver-root-ctr-path",
        group=DEVICES,
        kind=kinds.PATH,
        field="container_driver_root",
        aliases=("container-driver-root",),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        nvidia="flags.plugin.containerDriverRoot",
        help="Where the driver's root is mounted in the agent's own container. Where there is no "
        "such directory the driver's files are looked for at --nvidia-driver-root itself.",
    ),
    Setting(
        name="imex-channel-ids",
        group=DEVICES,
        kind=kinds.NUMBERS,
        field="imex_channel_ids",
        env=("IMEX_CHANNEL_IDS",),
        nvidia="imex.channelIDs",
        value_text="none",
        help="IMEX channels (multi-node NVLink) that every container with a GPU gets.",
    ),
    Setting(
        name="imex-required",
        group=DEVICES,
        kind=kinds.SWITCH,
        field="imex_required",
        env=("IMEX_REQUIRED",),
        nvidia="imex.required",
        help="Refuse containers while such a channel is not there; otherwise they start without "
        "it.",
    ),
    Setting(
        name="config-file-srcdir",
        group=NVIDIA,
        kind=kinds.PATH,
        field="config_srcdir",
        env=("CONFIG_FILE_SRCDIR",),
        value_text="none",
        help="Directory with several configurations, one a file, as a ConfigMap is mounted. The "
        "agent reads the one that a label of the Node names, instead of --config-file, and ends "
        "when the label names another, to be started anew. Needs the API server.",
    ),
    Setting(
        name="node-label",
        group=NVIDIA,
        kind=kinds.TEXT,
        field="config_label",
        env=("NODE_LABEL",),
        help="That label.",
    ),
    Setting(
        name="default-config",
        group=NVIDIA,
        kind=kinds.TEXT,
        field="default_config",
        env=("DEFAULT_CONFIG",),
        value_text="none: --fallback-strategies",
        help="The configuration of nodes without the label.",
    ),
    Setting(
        name="fallback-strategies",
        group=NVIDIA,
        kind=kinds.WORDS,
        field="fallback_strategies",
        env=("FALLBACK_STRATEGIES",),
        help="What nodes without the label take where there is no --default-config, the first that "
        "is there. named: the configuration `default`. single: the only one. empty: none.",
    ),
    Setting(
        name="mig-strategy",
        group=NVIDIA,
        kind=kinds.TEXT,
        field="mig_strategy",
        env=("MIG_STRATEGY",),
        nvidia="flags.migStrategy",
        help="What becomes of GPUs in MIG mode. none: they are offered as whole GPUs. single: "
        "their MIG devices, all of one kind, are offered as nvidia.com/gpu. mixed: each profile is "
        "a resource of its own, e.g. nvidia.com/mig-1g.10gb. Other modes know none.",
    ),
    Setting(
        name="time-slicing",
        group=NVIDIA,
        kind=kinds.TIME_SLICING,
        field="time_slicing",
        nvidia="sharing.timeSlicing",
        value_text="none",
        help="Offer GPUs several times: renameByDefault, failRequestsGreaterThanOne, and "
        "resources, a list of name, replicas, rename and devices.",
    ),
    Setting(
        name="mps",
        group=NVIDIA,
        kind=kinds.MPS,
        field="mps",
        nvidia="sharing.mps",
        value_text="none",
        help="The same through NVIDIA's MPS daemon, which the agent starts and looks after, with "
        "equal parts of memory and compute for each replica.",
    ),
    Setting(
        name="mps-root",
        group=NVIDIA,
        kind=kinds.PATH,
        field="mps_root",
        env=("MPS_ROOT",),
        nvidia="flags.mpsRoot",
        help="Directory of the host for the pipes and logs of MPS daemons; the agent must see it "
        "at the same path.",
    ),
    Setting(
        name="resources",
        group=NVIDIA,
        kind=kinds.RESOURCES,
        field="resource_patterns",
        nvidia="resources",
        value_text="none",
        help="Names of resources by product (gpus) or by MIG profile (mig): lists of pattern and "
        "name.",
    ),
    Setting(
        name="shared-devices-allocation-policy",
        group=NVIDIA,
        kind=kinds.TEXT,
        field="shared_allocation_policy",
        env=("SHARED_DEVICES_ALLOCATION_POLICY",),
        nvidia="flags.plugin.sharedDevicesAllocationPolicy",
        help="Which replicas kubelet should take. distributed: of the GPU that has given least. "
        "packed: of the one that has given most. spread: of as many GPUs as a container asks for.",
    ),
)
