/* Calls the driver by linked names: whatever is first in this library's own namespace. */
int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuMemAlloc_v2(unsigned long long *address, unsigned long size);

int allocate_mib(unsigned long mib)
{
    static void *context;
    unsigned long long address;
    int device, result = 0;
    if (!context && (result = cuInit(0)) == 0 && (result = cuDeviceGet(&device, 0)) == 0)
        result = cuCtxCreate_v2(&context, 0, device);
    return result || !mib ? result : cuMemAlloc_v2(&address, mib << 20);
}
