"""Rows of the table: who the node is, how it shares its GPUs, what it tells the scheduler."""

from agent.settings import kinds
from agent.settings.setting import HOW, SCHEDULER, WHO, Setting

ROWS = (
    Setting(
        name="node-name",
        group=WHO,
        kind=kinds.TEXT,
        field="node_name",
        env=("NODE_NAME", "NodeName"),
        value_text="the host name in lower case",
        help="Name of this machine's Node object.",
    ),
    Setting(
        name="kubeconfig",
        group=WHO,
        kind=kinds.KUBECONFIG,
        field="kubeconfig",
        env=("KUBECONFIG",),
        value_text="the pod's service account",
        help="File with the address and credentials of the API server.",
    ),
    Setting(
        name="config-file",
        group=WHO,
        kind=kinds.PATH,
        field="config_file",
        env=("CONFIG_FILE",),
        value_text="none",
        help="HAMi's device-config.yaml (section nvidia), or NVIDIA's plugin configuration "
        "(version: v1, flags), or both in one file; at most 1 MiB.",
    ),
    Setting(
        name="node-config-file",
        group=WHO,
        kind=kinds.PATH,
        value_text="/config/config.json",
        help="HAMi's node override file. Entries whose name is this node's apply; of several, the "
        "last wins key by key. May be absent, unless it was named here.",
    ),
    Setting(
        name="resource-name",
        group=WHO,
        kind=kinds.TEXT,
        field="resource_name",
        hami="resourceCountName",
        by_mode={"volcano": "volcano.sh/vgpu-number"},
        help="Extended resource that kubelet and the scheduler count vGPUs by.",
    ),
    Setting(
        name="mode",
        group=HOW,
        kind=kinds.TEXT,
        field="mode",
        help="Who decides which container gets what of which GPU. hami: HAMi's scheduler, by "
        "annotations of pods. slices: kubelet alone, each vGPU being an enforced slice of a GPU; "
        "needs no scheduler and no API server. volcano: Volcano's scheduler, by annotations of "
        "pods, with its three resources. nvidia: kubelet alone, as with NVIDIA's device plugin: "
        "whole GPUs, MIG devices or replicas without limits; needs no API server either.",
    ),
    Setting(
        name="gpu-memory-factor",
        group=HOW,
        kind=kinds.WHOLE,
        field="memory_factor",
        hami="gpuMemoryFactor",
        value_text="0: the smallest that works here",
        help="In mode volcano: MiB of one unit of volcano.sh/vgpu-memory. Users write amounts in "
        "units, so give all nodes the same. 0: the smallest whose messages go through on this "
        "node; it is remembered. One that is too small is refused.",
    ),
    Setting(
        name="gpu-memory-ids",
        group=HOW,
        kind=kinds.TEXT,
        field="memory_ids",
        help="In mode volcano: how units of memory are named for kubelet. short: 8 digits of the "
        "GPU's uuid and a number, which allows smaller units; uuid: as Volcano's device plugin "
        "names them, for a node that is switched over while its pods run.",
    ),
    Setting(
        name="slice-sizes",
        group=HOW,
        kind=kinds.SIZES,
        field="slice_sizes",
        value_text="none: equal parts of every GPU",
        help="In mode slices: named sizes, each a resource of its own (<resource-name>-<size>), "
        "such as small=8Gi:25,large=24Gi:50: memory (a bare number counts MiB) and percent of the "
        "cores. In a configuration file: sizes: {small: {memory: 8Gi, cores: 25}}.",
    ),
    Setting(
        name="slice-placement",
        group=HOW,
        kind=kinds.TEXT,
        field="slice_placement",
        help="In mode slices: which GPU a container's slices are taken from first. spread: the "
        "one of which least is handed out; pack: the one of which most is.",
    ),
    Setting(
        name="slice-gpus",
        group=HOW,
        kind=kinds.TEXT,
        field="slice_gpus",
        help="In mode slices: whether several slices of one container should be of one GPU, where "
        "they add up, of distinct GPUs, or of any. Kubelet takes it as a wish.",
    ),
    Setting(
        name="gpumem-name",
        group=HOW,
        kind=kinds.TEXT,
        field="gpumem_name",
        hami="resourceMemoryName",
        help="Extended resource by which containers ask for memory of each vGPU. A claim of more "
        "than that is refused, as no scheduler makes it. Empty: not compared.",
    ),
    Setting(
        name="gpumem-percentage-name",
        group=HOW,
        kind=kinds.TEXT,
        field="gpumem_percentage_name",
        hami="resourceMemoryPercentageName",
        help="The same for memory in percent of the GPU.",
    ),
    Setting(
        name="gpucores-name",
        group=HOW,
        kind=kinds.TEXT,
        field="gpucores_name",
        hami="resourceCoreName",
        help="The same for percent of the GPU's cores.",
    ),
    Setting(
        name="gpumem-factor",
        group=HOW,
        kind=kinds.WHOLE,
        field="gpumem_factor",
        hami="memoryFactor",
        help="MiB of one unit of --gpumem-name, as the scheduler has it: where its units are "
        "larger than this, containers are refused.",
    ),
    Setting(
        name="unannotated",
        group=HOW,
        kind=kinds.TEXT,
        field="unannotated",
        help="In mode hami: what a pod gets that asks for vGPUs and has no decision of the "
        "scheduler. refuse: nothing; slice: an equal part of a GPU for each, as in mode slices, "
        "out of what the scheduler has not promised. The scheduler does not know of it.",
    ),
    Setting(
        name="device-split-count",
        group=HOW,
        kind=kinds.WHOLE,
        field="sharing.split_count",
        env=("DEVICE_SPLIT_COUNT",),
        hami="deviceSplitCount",
        node="devicesplitcount",
        zero_is_none=True,
        help="vGPUs advertised per GPU: how many containers may share it.",
    ),
    Setting(
        name="device-memory-scaling",
        group=HOW,
        kind=kinds.REAL,
        field="sharing.memory_scaling",
        env=("DEVICE_MEMORY_SCALING",),
        hami="deviceMemoryScaling",
        node="devicememoryscaling",
        zero_is_none=True,
        help="Memory offered per GPU as a ratio of what it has; above 1 oversubscribes it.",
    ),
    Setting(
        name="device-cores-scaling",
        group=HOW,
        kind=kinds.REAL,
        field="sharing.core_scaling",
        env=("DEVICE_CORES_SCALING",),
        hami="deviceCoreScaling",
        node="devicecorescaling",
        zero_is_none=True,
        help="Compute offered per GPU as a ratio of 100 %.",
    ),
    Setting(
        name="operating-mode",
        group=HOW,
        kind=kinds.TEXT,
        field="sharing.mode",
        node="operatingmode",
        zero_is_none=True,
        help="How GPUs are divided. hami-core: by limits that a library in the container keeps. "
        "mig: by the hardware, into instances that are made for each container as HAMi's "
        "scheduler (2.10) decides.",
    ),
    Setting(
        name="mig-profile-allowlist",
        group=HOW,
        kind=kinds.MIG_ALLOWLIST,
        field="sharing.mig_allowlist",
        hami="migProfileAllowlist",
        value_text="all without extra engines",
        help="Operating mode mig: which profiles may be used on which models. The first entry "
        "counts of whose models one is a part of the product name.",
    ),
    Setting(
        name="known-mig-geometries",
        group=HOW,
        kind=kinds.MIG_GEOMETRIES,
        field="mig_geometries",
        hami="knownMigGeometries",
        value_text="none",
        help="Operating mode mig, schedulers of HAMi 2.5 to 2.9: what the slots mean that these "
        "choose; the same list as the scheduler's.",
    ),
    Setting(
        name="mig-apply-lock",
        group=HOW,
        kind=kinds.PATH,
        field="mig_apply_lock",
        help="The file by which HAMi's plugin and monitor know that GPUs are being divided. In "
        "operating mode mig it is there while we do, and respected while it is somebody else's; in "
        "every mode nobody is made to wait or lent to meanwhile.",
    ),
    Setting(
        name="preconfigured-device-memory",
        group=HOW,
        kind=kinds.WHOLE,
        field="sharing.preconfigured_memory_mib",
        hami="preConfiguredDeviceMemory",
        node="preconfigureddevicememory",
        help="Memory of a GPU whose driver does not tell it (unified memory); 0 leaves such GPUs "
        "out.",
    ),
    Setting(
        name="filter-device-uuids",
        group=HOW,
        kind=kinds.WORDS,
        field="sharing.excluded_uuids",
        node="filterdevices.uuid",
        value_text="none",
        help="UUIDs of GPUs that are not shared: neither kubelet nor the scheduler sees them.",
    ),
    Setting(
        name="filter-device-indices",
        group=HOW,
        kind=kinds.NUMBERS,
        field="sharing.excluded_indices",
        node="filterdevices.index",
        value_text="none",
        help="The same by NVML index.",
    ),
    Setting(
        name="enable-numa-topology",
        group=HOW,
        kind=kinds.SWITCH,
        field="sharing.numa_hints",
        hami="enableNumaTopology",
        node="enablenumatopology",
        help="Tell kubelet the NUMA node of each vGPU, for its topology manager. Where a scheduler "
        "has chosen the GPU (modes hami and volcano), a policy of kubelet's may choose another's "
        "node: CPUs and memory are then near that one.",
    ),
    Setting(
        name="disable-core-limit",
        group=HOW,
        kind=kinds.SWITCH,
        field="disable_core_limit",
        env=("DISABLE_CORE_LIMIT",),
        hami="disableCoreLimit",
        help="Give containers their compute share without enforcing it "
        "(GPU_CORE_UTILIZATION_POLICY=disable).",
    ),
    Setting(
        name="allow-disable-control",
        group=HOW,
        kind=kinds.SWITCH,
        field="allow_disable_control",
        help="Honour a container's own CUDA_DISABLE_CONTROL=true, as HAMi's and Volcano's plugins "
        "do: every author of a pod may then take its limits away. Otherwise they hold, and the pod "
        "is told so (modes hami and volcano).",
    ),
    Setting(
        name="lib-cuda-log-level",
        group=HOW,
        kind=kinds.TEXT,
        field="hook_log_level",
        hami="libCudaLogLevel",
        node="libcudaloglevel",
        value_text="not set",
        help="LIBCUDA_LOG_LEVEL in containers: 0 nothing, 1 errors, 2 to 4 also what is refused.",
    ),
    Setting(
        name="register-format",
        group=SCHEDULER,
        kind=kinds.TEXT,
        field="register_format",
        help="Form of hami.io/node-nvidia-register: json for HAMi 2.8 and later, csv9 for 2.5 to "
        "2.7, csv7 for older ones. No form suits both generations of schedulers.",
    ),
    Setting(
        name="handshake",
        group=SCHEDULER,
        kind=kinds.TEXT,
        field="handshake",
        help="Keep the scheduler's handshake alive, which HAMi up to 2.7 and Volcano up to 1.15 "
        "need. auto: with the csv formats, and in mode volcano.",
    ),
    Setting(
        name="enable-topology-score",
        group=SCHEDULER,
        kind=kinds.SWITCH,
        field="topology_score",
        env=("ENABLE_TOPOLOGY_SCORE",),
        only_true=("ENABLE_TOPOLOGY_SCORE",),
        help="Publish how well GPUs are connected with each other "
        "(hami.io/node-nvidia-score). ENABLE_TOPOLOGY_SCORE counts only when it is exactly "
        "`true`, as in HAMi.",
    ),
    Setting(
        name="clean-exit",
        group=SCHEDULER,
        kind=kinds.SWITCH,
        field="clean_exit",
        help="Take our annotations back from the Node when the agent stops. HAMi's scheduler from "
        "2.9 on would go on with what it read last: for it the GPUs stay there as unhealthy. "
        "Without this setting a restart is invisible to the scheduler; `vgpu-agent uninstall` "
        "removes the annotations then.",
    ),
)
