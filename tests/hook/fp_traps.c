/* A program whose arithmetic traps wherever a result is not exact, and that does none itself: launches, waits,
 * asks how busy it was, and prints the answers of the driver, and whether anything was inexact.
 */
#include "cuda_abi.h"
#include "nvml_abi.h"

#include <dlfcn.h>
#include <fenv.h>
#include <stdio.h>
#include <unistd.h>

enum { LAUNCHES = 600, TOGETHER = 50 };

int main(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
#define CU(name) ((__typeof__(&name))dlsym(cuda, #name))
    static const char code[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry k(){ret;}";
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    int result = CU(cuInit)(0);
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_ALL_EXCEPT);
    result |= CU(cuDevicePrimaryCtxRetain)(&context, 0) | CU(cuCtxSetCurrent)(context);
    result |= CU(cuModuleLoadData)(&module, code) | CU(cuModuleGetFunction)(&kernel, module, "k");
    for (int i = 0; i < LAUNCHES; i++) {
        result |= CU(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        if (i % TOGETHER == 0)
            result |= CU(cuCtxSynchronize)();
    }
    result |= CU(cuCtxSynchronize)();
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
#define NVML(name) ((__typeof__(&name))dlsym(nvml, #name))
    nvmlDevice_t device;
    struct nvml_utilization busy;
    result |= (int)NVML(nvmlInit_v2)() | (int)NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device);
    result |= (int)NVML(nvmlDeviceGetUtilizationRates)(device, &busy);
    usleep(300000);
    printf("%d %x\n", result, fetestexcept(FE_ALL_EXCEPT));
    return 0;
}
