/* The part of NVML's binary interface that the hook wraps and the simulated driver provides.
 *
 * Written from the public reference (https://docs.nvidia.com/deploy/nvml-api/), so that building needs no
 * CUDA toolkit and no vendor header can rename a function by macro. Sizes are pinned below: they are an ABI.
 * Only types, constants and prototypes; nothing here has state.
 */
#ifndef VGPU_NVML_ABI_H
#define VGPU_NVML_ABI_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

enum {
    NVML_EVENT_SINGLE_BIT_ECC = 0x1, /* nvmlEventTypeSingleBitEccError */
    NVML_EVENT_DOUBLE_BIT_ECC = 0x2, /* nvmlEventTypeDoubleBitEccError */
    NVML_EVENT_XID_CRITICAL = 0x8, /* nvmlEventTypeXidCriticalError */
};

enum {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_SINGLE = 10,
    NVML_TOPOLOGY_MULTIPLE = 20,
    NVML_TOPOLOGY_HOSTBRIDGE = 30,
    NVML_TOPOLOGY_NODE = 40,
    NVML_TOPOLOGY_SYSTEM = 50,
};

enum {
    NVML_P2P_INDEX_NVLINK = 2, /* NVML_P2P_CAPS_INDEX_NVLINK */
    NVML_P2P_OK = 0, /* NVML_P2P_STATUS_OK */
    NVML_P2P_NOT_SUPPORTED = 5, /* NVML_P2P_STATUS_NOT_SUPPORTED */
    NVML_REMOTE_GPU = 0, /* NVML_NVLINK_DEVICE_TYPE_GPU */
    NVML_REMOTE_SWITCH = 2, /* NVML_NVLINK_DEVICE_TYPE_SWITCH */
};

enum {
    NVML_PROCESSES_COMPUTE = 0, /* NVML_PROCESS_MODE_COMPUTE */
    NVML_PROCESSES_GRAPHICS = 1, /* NVML_PROCESS_MODE_GRAPHICS */
    NVML_PROCESSES_MPS = 2, /* NVML_PROCESS_MODE_MPS */
    NVML_PROCESSES_ALL = 3, /* NVML_PROCESS_MODE_ALL */
};

enum {
    NVML_SAMPLES_GPU = 1, /* NVML_GPU_UTILIZATION_SAMPLES */
    NVML_SAMPLES_MEMORY = 2, /* NVML_MEMORY_UTILIZATION_SAMPLES */
    NVML_VALUE_UNSIGNED = 1, /* NVML_VALUE_TYPE_UNSIGNED_INT */
};

#define NVML_NAME_BYTES 96
#define NVML_NO_INSTANCE 0xFFFFFFFFu

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
#define NVML_MEMORY_V2 ((unsigned)sizeof(struct nvml_memory_v2) | (2u << 24))

struct nvml_pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct nvml_utilization {
    unsigned gpu, memory;
};

struct nvml_bar1_memory {
    unsigned long long total, free, used;
};

struct nvml_process_info_v1 {
    unsigned pid;
    unsigned long long used_bytes;
};

struct nvml_process_info {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance_id, compute_instance_id;
};

/* Those before are its beginning. */
struct nvml_process_detail {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance_id, compute_instance_id;
    unsigned long long protected_bytes;
};

struct nvml_process_detail_list {
    unsigned version, mode, count;
    struct nvml_process_detail *details;
};
#define NVML_PROCESS_DETAIL_LIST_V1 ((unsigned)sizeof(struct nvml_process_detail_list) | (1u << 24))

struct nvml_process_utilization {
    unsigned pid;
    unsigned long long time_stamp_us;
    unsigned sm_percent, memory_percent, encoder_percent, decoder_percent;
};

struct nvml_process_utilization_info {
    unsigned long long time_stamp_us;
    unsigned pid, sm_percent, memory_percent, encoder_percent, decoder_percent, jpeg_percent, ofa_percent;
};

struct nvml_processes_utilization {
    unsigned version, count;
    unsigned long long last_seen_us;
    struct nvml_process_utilization_info *infos;
};
#define NVML_PROCESSES_UTILIZATION_V1 ((unsigned)sizeof(struct nvml_processes_utilization) | (1u << 24))

struct nvml_sample {
    unsigned long long time_stamp_us;
    unsigned value[2]; /* a union: a number of NVML_VALUE_UNSIGNED is the first */
};

struct nvml_event_data {
    nvmlDevice_t device;
    unsigned long long event_type, event_data;
    unsigned gpu_instance_id, compute_instance_id;
};

struct nvml_device_attributes {
    unsigned multiprocessor_count, shared_copy_engines, shared_decoders, shared_encoders, shared_jpeg,
        shared_ofa;
    unsigned gpu_instance_slices, compute_instance_slices;
    unsigned long long memory_mib;
};

_Static_assert(sizeof(struct nvml_memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct nvml_pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct nvml_utilization) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(struct nvml_bar1_memory) == 24, "nvmlBAR1Memory_t");
_Static_assert(sizeof(struct nvml_process_info_v1) == 16, "nvmlProcessInfo_v1_t");
_Static_assert(sizeof(struct nvml_process_detail) == 32, "nvmlProcessDetail_v1_t");
_Static_assert(sizeof(struct nvml_process_detail_list) == 24, "nvmlProcessDetailList_v1_t");
_Static_assert(sizeof(struct nvml_process_utilization_info) == 40, "nvmlProcessUtilizationInfo_v1_t");
_Static_assert(sizeof(struct nvml_processes_utilization) == 24, "nvmlProcessesUtilizationInfo_v1_t");
_Static_assert(sizeof(struct nvml_sample) == 16, "nvmlSample_t");
_Static_assert(sizeof(struct nvml_process_info) == 24, "nvmlProcessInfo_t, nvmlProcessInfo_v2_t");
_Static_assert(sizeof(struct nvml_process_utilization) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(struct nvml_event_data) == 32, "nvmlEventData_t");
_Static_assert(sizeof(struct nvml_device_attributes) == 40, "nvmlDeviceAttributes_t");

nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlInitWithFlags(unsigned flags);
nvmlReturn_t nvmlShutdown(void);
const char *nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length);
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length);
nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version);
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version);

nvmlReturn_t nvmlDeviceGetCount(unsigned *count);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length);
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index);
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor_number);
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct nvml_pci_info *pci);
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node);
nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *nodes,
                                         unsigned scope);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct nvml_utilization *utilization);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter,
                                         unsigned long long *count);

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct nvml_memory *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct nvml_memory_v2 *memory);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                  struct nvml_process_info_v1 *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                     struct nvml_process_info *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     struct nvml_process_info *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                   struct nvml_process_info_v1 *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                      struct nvml_process_info *infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                      struct nvml_process_info *infos);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                     struct nvml_process_info_v1 *infos);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                        struct nvml_process_info *infos);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        struct nvml_process_info *infos);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   struct nvml_process_detail_list *list);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct nvml_process_utilization *samples,
                                             unsigned *count, unsigned long long last_seen_us);
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   struct nvml_processes_utilization *all);
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen_us,
                                  int *value_type, unsigned *count, struct nvml_sample *samples);
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct nvml_bar1_memory *memory);

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set);
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct nvml_event_data *data, unsigned timeout_ms);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct nvml_event_data *data, unsigned timeout_ms);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig);
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig);
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id);
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id);
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, struct nvml_device_attributes *attributes);

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, int *level);
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, int index, int *status);
nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int *on_same_board);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active);
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                 struct nvml_pci_info *pci);
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type);

#endif
