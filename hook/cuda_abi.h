/* Types and constants of the CUDA driver's binary interface, as far as the hook and the simulated driver look
 * into them.
 *
 * Written from the public reference (https://docs.nvidia.com/cuda/cuda-driver-api/), so that building needs
 * no CUDA toolkit, and because cuda.h renames by macro (`#define cuMemAlloc cuMemAlloc_v2`), which would
 * rewrite our tables. Where the vendor's header was included before (CUDA_VERSION), its types are used, so
 * that a test can let the compiler compare the prototypes.
 */
#ifndef VGPU_CUDA_ABI_H
#define VGPU_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifndef CUDA_VERSION

typedef int CUresult;
typedef int CUdevice;
typedef unsigned int CUdeviceptr_v1;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;

typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUextMemory_st *CUexternalMemory;
typedef unsigned long long CUtexObject;
typedef struct CUDA_RESOURCE_DESC_st CUDA_RESOURCE_DESC;
typedef struct CUDA_TEXTURE_DESC_st CUDA_TEXTURE_DESC;
typedef struct CUDA_RESOURCE_VIEW_DESC_st CUDA_RESOURCE_VIEW_DESC;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

typedef int CUdevice_attribute, CUdevResourceType, CUdriverProcAddressQueryResult, CUgraphExecUpdateResult,
    CUgraphMem_attribute, CUjit_option, CUlibraryOption, CUlimit, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemPool_attribute, CUpointer_attribute,
    CUstreamCaptureMode, CUstreamCaptureStatus;

/* Never looked into. */
typedef void (*CUgraphRecaptureCallback)(void);
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef struct CUdevResource_st CUdevResource;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUgraphExecUpdateResultInfo_st CUgraphExecUpdateResultInfo;
typedef struct CUmemPoolPtrExportData_st CUmemPoolPtrExportData;
typedef struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
typedef struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC_st CUDA_EXTERNAL_MEMORY_BUFFER_DESC;

typedef struct CUuuid_st {
    unsigned char bytes[16];
} CUuuid;

typedef struct CUipcMemHandle_st {
    char reserved[64];
} CUipcMemHandle;

typedef struct CUmemLocation_st {
    int type, id;
} CUmemLocation;

typedef struct CUmemAccessDesc_st {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

typedef struct CUmemAllocationProp_st {
    int type, requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    unsigned char allocFlags[8];
} CUmemAllocationProp;

typedef struct CUmulticastObjectProp_st {
    unsigned numDevices;
    size_t size;
    unsigned long long handleTypes, flags;
} CUmulticastObjectProp;

typedef struct CUmemPoolProps_st {
    int allocType, handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char gpuDirectRDMACapable, reserved[53];
} CUmemPoolProps;

typedef struct CUDA_MEM_ALLOC_NODE_PARAMS_st {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount, bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct CUDA_ARRAY_DESCRIPTOR_v1_st {
    unsigned Width, Height;
    int Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY_DESCRIPTOR_st {
    size_t Width, Height;
    int Format;
    unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_v1_st {
    unsigned Width, Height, Depth;
    int Format;
    unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct CUDA_ARRAY3D_DESCRIPTOR_st {
    size_t Width, Height, Depth;
    int Format;
    unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct CUlaunchConfig_st {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void *attrs;
    unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUDA_LAUNCH_PARAMS_st {
    CUfunction function;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

typedef struct CUDA_KERNEL_NODE_PARAMS_st {
    CUfunction func;
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void **kernelParams, **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct CUgraphNodeParams_st {
    int type, reserved0[3];
    union {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUgraph child; /* of CU_GRAPH_NODE_TYPE_GRAPH */
        CUdeviceptr free; /* of CU_GRAPH_NODE_TYPE_MEM_FREE */
        unsigned char bytes[232];
    } of;
    long long reserved2;
} CUgraphNodeParams;

typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS_st {
    cuuint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    int result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");
_Static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "CUDA_LAUNCH_PARAMS");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "CUgraphNodeParams");

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_GRAPH_RECAPTURE_FAILURE = 918,
    CUDA_ERROR_UNKNOWN = 999,
};

enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2, /* a flag */
};

/* Drivers from this version on know POOL_ALLOCATION_TYPE and POOL_LOCATION_*. */
#define POOLS_TOLD_SINCE 13020

/* Values under names of our own, where the vendor's header would define the same; its name stands beside. */
enum {
    MEMORY_LOCATION_NONE = 0, /* CU_MEM_LOCATION_TYPE_NONE */
    MEMORY_LOCATION_DEVICE = 1, /* CU_MEM_LOCATION_TYPE_DEVICE */
    MEMORY_LOCATION_HOST = 2, /* CU_MEM_LOCATION_TYPE_HOST */
    MEMORY_LOCATION_HOST_NUMA = 3, /* CU_MEM_LOCATION_TYPE_HOST_NUMA */
    MEMORY_LOCATION_HOST_NUMA_CURRENT = 4, /* CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT */
    MEMORY_LOCATION_DEVICE_DOMAIN = 6, /* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN */
    LIMIT_PRINTF_FIFO_SIZE = 1, /* CU_LIMIT_PRINTF_FIFO_SIZE */
    LIMIT_MALLOC_HEAP_SIZE = 2, /* CU_LIMIT_MALLOC_HEAP_SIZE */
    POOL_RESERVED_BYTES = 5, /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
    POOL_USED_BYTES = 7, /* CU_MEMPOOL_ATTR_USED_MEM_CURRENT */
    POOL_ALLOCATION_TYPE = 9, /* CU_MEMPOOL_ATTR_ALLOCATION_TYPE */
    POOL_LOCATION_ID = 11, /* CU_MEMPOOL_ATTR_LOCATION_ID */
    POOL_LOCATION_TYPE = 12, /* CU_MEMPOOL_ATTR_LOCATION_TYPE */
    ALLOCATION_PINNED = 1, /* CU_MEM_ALLOCATION_TYPE_PINNED */
    ALLOCATION_MANAGED = 2, /* CU_MEM_ALLOCATION_TYPE_MANAGED */
    GRAPH_MEMORY_USED_BYTES = 0, /* CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT */
    GRAPH_MEMORY_RESERVED_BYTES = 2, /* CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT */
    GRAPH_INSTANTIATE_AUTO_FREE = 1, /* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH */
    GRAPH_INSTANTIATE_UPLOAD = 2, /* CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD */
    GRAPH_INSTANTIATE_DEVICE_LAUNCH = 4, /* CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH */
    GRAPH_INSTANTIATE_ERROR = 1, /* CUDA_GRAPH_INSTANTIATE_ERROR */
    GRAPH_NODE_KERNEL = 0, /* CU_GRAPH_NODE_TYPE_KERNEL */
    GRAPH_NODE_CHILD_GRAPH = 4, /* CU_GRAPH_NODE_TYPE_GRAPH */
    GRAPH_NODE_ALLOCATION = 10, /* CU_GRAPH_NODE_TYPE_MEM_ALLOC */
    GRAPH_NODE_FREE = 11, /* CU_GRAPH_NODE_TYPE_MEM_FREE */
    CAPTURE_NONE = 0, /* CU_STREAM_CAPTURE_STATUS_NONE */
    CAPTURE_ACTIVE = 1, /* CU_STREAM_CAPTURE_STATUS_ACTIVE */
    CAPTURE_INVALIDATED = 2, /* CU_STREAM_CAPTURE_STATUS_INVALIDATED */
    CAPTURE_MODE_GLOBAL = 0, /* CU_STREAM_CAPTURE_MODE_GLOBAL */
    CAPTURE_MODE_THREAD_LOCAL = 1, /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
    CAPTURE_MODE_RELAXED = 2, /* CU_STREAM_CAPTURE_MODE_RELAXED */
    STREAM_CREATED_NON_BLOCKING = 1, /* CU_STREAM_NON_BLOCKING */
    EVENT_WITHOUT_TIME = 2, /* CU_EVENT_DISABLE_TIMING */
    ARRAY_CUBEMAP = 4, /* CUDA_ARRAY3D_CUBEMAP */
    ARRAY_DEFERRED_MAPPING = 0x80, /* CUDA_ARRAY3D_DEFERRED_MAPPING */
    ARRAY_SPARSE = 0x40, /* CUDA_ARRAY3D_SPARSE */
};

#endif /* CUDA_VERSION */

#include "cuda_prototypes.h"

#endif
