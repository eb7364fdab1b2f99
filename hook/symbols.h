/* Every function of the driver that is intercepted or called, once: pointers, loading, both lookups, exports
 * and the tables of docs/hook.md come from here.
 *
 * CUDA: X(symbol, its name in cuGetProcAddress, CUDA version that brought this ABI, flags of
 * cuGetProcAddress). A name without suffix is the first ABI. The wrapper of each is in the file named above
 * its lines. To add one: a line here, `python3 build.py cuda-symbols`, its wrapper.
 */
#ifndef VGPU_SYMBOLS_H
#define VGPU_SYMBOLS_H

#define PER_THREAD 2 /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

// clang-format off
#define CUDA_SYMBOLS(X) \
    /* cuda_start.c */                                                                                        \
    X(cuInit, "cuInit", 2000, 0)                                                                              \
    /* proc_address.c */                                                                                      \
    X(cuGetProcAddress, "cuGetProcAddress", 11030, 0)                                                         \
    X(cuGetProcAddress_v2, "cuGetProcAddress", 12000, 0)                                                      \
    /* cuda_memory.c */                                                                                       \
    X(cuMemAlloc, "cuMemAlloc", 2000, 0)                                                                      \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0)                                                                   \
    X(cuMemAllocPitch, "cuMemAllocPitch", 2000, 0)                                                            \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0)                                                         \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0)                                                        \
    X(cuMemFree, "cuMemFree", 2000, 0)                                                                        \
    X(cuMemFree_v2, "cuMemFree", 3020, 0)                                                                     \
    /* cuda_pool.c */                                                                                         \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0)                                                           \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, PER_THREAD)                                             \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0)                                           \
    X(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, PER_THREAD)                             \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0)                                                             \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, PER_THREAD)                                               \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0)                                                           \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0)                                                         \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0)                                                           \
    X(cuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020, 0)                     \
    X(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, 0)                                             \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0)                                                    \
    X(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, PER_THREAD)                                      \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, 0)                                                      \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)                                                          \
    X(cuCtxSynchronize_v2, "cuCtxSynchronize", 13000, 0)                                                      \
    /* cuda_vmm.c */                                                                                          \
    X(cuMemCreate, "cuMemCreate", 10020, 0)                                                                   \
    X(cuMemRelease, "cuMemRelease", 10020, 0)                                                                 \
    X(cuMemMap, "cuMemMap", 10020, 0)                                                                         \
    X(cuMemUnmap, "cuMemUnmap", 10020, 0)                                                                     \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0)                                   \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, 0)                             \
    X(cuMulticastCreate, "cuMulticastCreate", 12010, 0)                                                       \
    X(cuMulticastBindMem, "cuMulticastBindMem", 12010, 0)                                                     \
    X(cuMulticastBindMem_v2, "cuMulticastBindMem", 13010, 0)                                                  \
    X(cuMulticastBindAddr, "cuMulticastBindAddr", 12010, 0)                                                   \
    X(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010, 0)                                                \
    X(cuMulticastUnbind, "cuMulticastUnbind", 12010, 0)                                                       \
    /* cuda_array.c */                                                                                        \
    X(cuArrayCreate, "cuArrayCreate", 2000, 0)                                                                \
    X(cuArrayCreate_v2, "cuArrayCreate", 3020, 0)                                                             \
    X(cuArray3DCreate, "cuArray3DCreate", 2000, 0)                                                            \
    X(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0)                                                         \
    X(cuArrayDestroy, "cuArrayDestroy", 2000, 0)                                                              \
    X(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0)                                              \
    X(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0)                                            \
    /* cuda_context.c */                                                                                      \
    X(cuCtxCreate, "cuCtxCreate", 2000, 0)                                                                    \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0)                                                                 \
    X(cuCtxCreate_v3, "cuCtxCreate", 11040, 0)                                                                \
    X(cuCtxCreate_v4, "cuCtxCreate", 12050, 0)                                                                \
    X(cuCtxDestroy, "cuCtxDestroy", 2000, 0)                                                                  \
    X(cuCtxDestroy_v2, "cuCtxDestroy", 4000, 0)                                                               \
    X(cuCtxAttach, "cuCtxAttach", 2000, 0)                                                                    \
    X(cuCtxDetach, "cuCtxDetach", 2000, 0)                                                                    \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, 0)                                                                \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0)                                          \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0)                                        \
    X(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, 0)                                    \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0)                                            \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0)                                        \
    X(cuGreenCtxCreate, "cuGreenCtxCreate", 12040, 0)                                                         \
    X(cuGreenCtxDestroy, "cuGreenCtxDestroy", 12040, 0)                                                       \
    /* cuda_module.c */                                                                                       \
    X(cuModuleLoad, "cuModuleLoad", 2000, 0)                                                                  \
    X(cuModuleLoadData, "cuModuleLoadData", 2000, 0)                                                          \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx", 2010, 0)                                                      \
    X(cuModuleLoadFatBinary, "cuModuleLoadFatBinary", 2000, 0)                                                \
    X(cuModuleUnload, "cuModuleUnload", 2000, 0)                                                              \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, 0)                                                       \
    X(cuLibraryLoadFromFile, "cuLibraryLoadFromFile", 12000, 0)                                               \
    X(cuLibraryGetManaged, "cuLibraryGetManaged", 12000, 0)                                                   \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, 0)                                                           \
    /* cuda_graph_memory.c */                                                                                 \
    X(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, 0)                                             \
    X(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040, 0)                                               \
    X(cuGraphAddNode, "cuGraphAddNode", 12020, 0)                                                             \
    X(cuGraphAddNode_v2, "cuGraphAddNode", 12030, 0)                                                          \
    X(cuGraphAddNode_v3, "cuGraphAddNode", 13040, 0)                                                          \
    X(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode", 10000, 0)                                         \
    X(cuGraphCreate, "cuGraphCreate", 10000, 0)                                                               \
    X(cuGraphClone, "cuGraphClone", 10000, 0)                                                                 \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, 0)                                                             \
    X(cuGraphInstantiate, "cuGraphInstantiate", 10000, 0)                                                     \
    X(cuGraphInstantiate_v2, "cuGraphInstantiate", 11000, 0)                                                  \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, 0)                                   \
    X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", 12000, 0)                                 \
    X(cuGraphInstantiateWithParams_ptsz, "cuGraphInstantiateWithParams", 12000, PER_THREAD)                   \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, 0)                                                     \
    X(cuGraphExecUpdate, "cuGraphExecUpdate", 10020, 0)                                                       \
    X(cuGraphExecUpdate_v2, "cuGraphExecUpdate", 12000, 0)                                                    \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, 0)                                                     \
    X(cuStreamEndCapture_ptsz, "cuStreamEndCapture", 10000, PER_THREAD)                                       \
    X(cuGraphUpload, "cuGraphUpload", 11010, 0)                                                               \
    X(cuGraphUpload_ptsz, "cuGraphUpload", 11010, PER_THREAD)                                                 \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, 0)                                                 \
    /* cuda_capture.c */                                                                                     \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10000, 0)                                                \
    X(cuStreamBeginCapture_ptsz, "cuStreamBeginCapture", 10000, PER_THREAD)                                  \
    X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, 0)                                             \
    X(cuStreamBeginCapture_v2_ptsz, "cuStreamBeginCapture", 10010, PER_THREAD)                               \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, 0)                                  \
    X(cuStreamBeginCaptureToGraph_ptsz, "cuStreamBeginCaptureToGraph", 12030, PER_THREAD)                    \
    X(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 13030, 0)                               \
    X(cuStreamBeginRecaptureToGraph_ptsz, "cuStreamBeginRecaptureToGraph", 13030, PER_THREAD)                 \
    /* cuda_launch.c */                                                                                       \
    X(cuLaunch, "cuLaunch", 2000, 0)                                                                          \
    X(cuLaunchGrid, "cuLaunchGrid", 2000, 0)                                                                  \
    X(cuLaunchGridAsync, "cuLaunchGridAsync", 2000, 0)                                                        \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, 0)                                                              \
    X(cuLaunchKernel_ptsz, "cuLaunchKernel", 7000, PER_THREAD)                                                \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, 0)                                                         \
    X(cuLaunchKernelEx_ptsz, "cuLaunchKernelEx", 11060, PER_THREAD)                                           \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, 0)                                        \
    X(cuLaunchCooperativeKernel_ptsz, "cuLaunchCooperativeKernel", 9000, PER_THREAD)                          \
    X(cuLaunchCooperativeKernelMultiDevice, "cuLaunchCooperativeKernelMultiDevice", 9000, 0)                  \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, 0)                                                               \
    X(cuGraphLaunch_ptsz, "cuGraphLaunch", 10000, PER_THREAD)                                                 \
    /* cuda_stream.c */                                                                                       \
    X(cuStreamDestroy, "cuStreamDestroy", 2000, 0)                                                            \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0)                                                         \
    /* cuda_view.c */                                                                                         \
    X(cuMemGetInfo, "cuMemGetInfo", 2000, 0)                                                                  \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0)                                                               \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 2000, 0)                                                          \
    X(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0)

/* Called by the wrappers, not intercepted. A driver may lack any of them. */
#define CUDA_USED(X) \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, 0)                                                              \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0)                                                            \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0)                                                            \
    X(cuCtxPushCurrent_v2, "cuCtxPushCurrent", 4000, 0)                                                       \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 0)                                                         \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0)                                                          \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0)                                                            \
    X(cuDeviceGetUuid_v2, "cuDeviceGetUuid", 11040, 0)                                                        \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, 0)                                                     \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, 0)                                                     \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0)                                       \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, 0)                                               \
    X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 11040, 0)                                 \
    X(cuArrayGetDescriptor_v2, "cuArrayGetDescriptor", 3020, 0)                                               \
    X(cuArray3DGetDescriptor_v2, "cuArray3DGetDescriptor", 3020, 0)                                           \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, 0)                                                   \
    X(cuStreamIsCapturing_ptsz, "cuStreamIsCapturing", 10000, PER_THREAD)                                     \
    X(cuStreamGetCaptureInfo_v2, "cuStreamGetCaptureInfo", 11030, 0)                                          \
    X(cuStreamGetCaptureInfo_v2_ptsz, "cuStreamGetCaptureInfo", 11030, PER_THREAD)                            \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, 0)                       \
    X(cuStreamQuery, "cuStreamQuery", 2000, 0)                                                                \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, 0)                                      \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, 0)                                                        \
    X(cuCtxFromGreenCtx, "cuCtxFromGreenCtx", 12040, 0)                                                       \
    X(cuStreamGetCtx, "cuStreamGetCtx", 9020, 0)                                                              \
    X(cuEventCreate, "cuEventCreate", 2000, 0)                                                                \
    X(cuEventRecord, "cuEventRecord", 2000, 0)                                                                \
    X(cuEventRecord_ptsz, "cuEventRecord", 7000, PER_THREAD)                                                  \
    X(cuEventQuery, "cuEventQuery", 2000, 0)                                                                  \
    X(cuEventElapsedTime, "cuEventElapsedTime", 2000, 0)                                                      \
    X(cuEventDestroy_v2, "cuEventDestroy", 4000, 0)                                                           \
    X(cuFuncGetModule, "cuFuncGetModule", 11000, 0)                                                           \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0)                                                      \
    X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020, 0)             \
    X(cuGreenCtxGetDevResource, "cuGreenCtxGetDevResource", 12040, 0)                                         \
    X(cuCtxGetId, "cuCtxGetId", 12000, 0)                                                                     \
    X(cuCtxGetLimit, "cuCtxGetLimit", 3010, 0)                                                                \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, 0)                                      \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050, 0)                                    \
    X(cuGetErrorName, "cuGetErrorName", 6000, 0)

/* Provided by the simulated driver besides, for programs under test. */
#define CUDA_SIMULATED(X) \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, 0)                                                \
    X(cuGetErrorString, "cuGetErrorString", 6000, 0)                                                          \
    X(cuDeviceGet, "cuDeviceGet", 2000, 0)                                                                    \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, 0)                                                            \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, 0)                                                  \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, 0)                                                    \
    X(cuModuleGetFunction, "cuModuleGetFunction", 2000, 0)                                                    \
    X(cuStreamCreate, "cuStreamCreate", 2000, 0)                                                              \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0)                                               \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020, 0)                                                   \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, 0)                                                         \
    X(cuMemSetAccess, "cuMemSetAccess", 10020, 0)                                                             \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020, 0)                                 \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020, 0)                               \
    X(cuMulticastAddDevice, "cuMulticastAddDevice", 12010, 0)                                                 \
    X(cuGraphAddKernelNode_v2, "cuGraphAddKernelNode", 12000, 0)                                              \
    X(cuStreamQuery_ptsz, "cuStreamQuery", 7000, PER_THREAD)                                                  \
    X(cuStreamWaitEvent_ptsz, "cuStreamWaitEvent", 7000, PER_THREAD)                                          \
    X(cuMemAllocHost_v2, "cuMemAllocHost", 3020, 0)                                                           \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0)                                                              \
    X(cuMemHostRegister_v2, "cuMemHostRegister", 6050, 0)                                                     \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, 0)                                                    \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, 0)                                                                \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0)                                                        \
    X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, 0)                                                  \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, 0)                                                    \
    X(cuImportExternalMemory, "cuImportExternalMemory", 10000, 0)                                             \
    X(cuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer", 10000, 0)                           \
    X(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, 0)                                           \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, 0)                                                     \
    X(cuLibraryGetModule, "cuLibraryGetModule", 12000, 0)                                                     \
    X(cuTexObjectCreate, "cuTexObjectCreate", 5000, 0)                                                        \
    X(cuTexObjectDestroy, "cuTexObjectDestroy", 5000, 0)                                                      \
    X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, 0)                                                               \
    X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, 0)                                                               \
    X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, 0)                                                     \
    X(cuMemsetD8_v2, "cuMemsetD8", 3020, 0)                                                                   \
    X(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000, 0)                                             \
    X(cuMemGetMemPool, "cuMemGetMemPool", 13000, 0)                                                           \
    X(cuDeviceGetDevResource, "cuDeviceGetDevResource", 12040, 0)                                             \
    X(cuDevResourceGenerateDesc, "cuDevResourceGenerateDesc", 12040, 0)                                       \
    X(cuGraphExecKernelNodeSetParams_v2, "cuGraphExecKernelNodeSetParams", 12000, 0)                          \
    X(cuGetExportTable, "cuGetExportTable", 3000, 0)                                                          \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 0)                                              \
    X(cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, 0)                                             \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, 0)

#define NVML_SYMBOLS(X)                                             \
    /* nvml_memory.c */                                             \
    X(nvmlDeviceGetMemoryInfo)                                      \
    X(nvmlDeviceGetMemoryInfo_v2)                                   \
    /* nvml_processes.c */                                          \
    X(nvmlDeviceGetComputeRunningProcesses)                         \
    X(nvmlDeviceGetComputeRunningProcesses_v2)                      \
    X(nvmlDeviceGetComputeRunningProcesses_v3)                      \
    X(nvmlDeviceGetGraphicsRunningProcesses)                        \
    X(nvmlDeviceGetGraphicsRunningProcesses_v2)                     \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3)                     \
    X(nvmlDeviceGetMPSComputeRunningProcesses)                      \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v2)                   \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3)                   \
    X(nvmlDeviceGetRunningProcessDetailList)                        \
    /* nvml_utilization.c */                                        \
    X(nvmlDeviceGetUtilizationRates)                                \
    X(nvmlDeviceGetSamples)                                         \
    X(nvmlDeviceGetProcessUtilization)                              \
    X(nvmlDeviceGetProcessesUtilizationInfo)

#define NVML_USED(X)                                                \
    X(nvmlInit_v2)                                                  \
    X(nvmlDeviceGetHandleByUUID)                                    \
    X(nvmlDeviceGetUUID)                                            \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)                 \
    X(nvmlDeviceGetGpuInstanceId)                                   \
    X(nvmlDeviceGetComputeInstanceId)                               \
    X(nvmlSystemGetDriverVersion)
// clang-format on

#define EXPORT __attribute__((visibility("default")))

#endif
