/* Simulated NVML: limits of device memory for a cgroup, which drivers from r615 on offer.
 *
 * They are written as the kernel's dmem controller shows them, into dmem.min and dmem.max of the directory,
 * one line for each GPU. So a directory of a test's own stands in for a cgroup. Programs are not held to
 * them.
 */
#include "nvml_call.h"
#include "nvml_mig_abi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIRST_BRANCH = 615, LINE_BYTES = 160, FILE_BYTES = 8192, PATH_BYTES = 4096 };

static nvmlReturn_t begin_limits(struct call *call, const char *function, nvmlDevice_t device,
                                 const char *cgroup)
{
    struct stat found;
    nvmlReturn_t result = call_begin_device(call, function, device);
    if (result == NVML_SUCCESS && atoi(call->node->driver_version) < FIRST_BRANCH)
        result = NVML_ERROR_FUNCTION_NOT_FOUND;
    if (result == NVML_SUCCESS && (call->mig || !cgroup))
        result = NVML_ERROR_INVALID_ARGUMENT; /* MIG handles are rejected */
    if (result == NVML_SUCCESS && call->gpu->mig)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS && (stat(cgroup, &found) != 0 || !S_ISDIR(found.st_mode)))
        result = NVML_ERROR_NOT_FOUND;
    return result;
}

/* The line of this GPU: "nvidia/0000:17:00.0/vidmem ". */
static void key_of(const struct call *call, char key[LINE_BYTES])
{
    struct nvml_pci_info pci;
    fill_pci(call->gpu->bus_id, &pci);
    snprintf(key, LINE_BYTES, "nvidia/%s/vidmem ", pci.bus_id_legacy);
}

static unsigned long long read_limit(const char *path, const char *key, unsigned long long absent)
{
    char line[LINE_BYTES];
    unsigned long long bytes = absent;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && strncmp(line + strlen(key), "max", 3) != 0)
            bytes = strtoull(line + strlen(key), NULL, 10);
    if (file)
        fclose(file);
    return bytes;
}

static bool write_limit(const char *path, const char *key, unsigned long long bytes)
{
    char line[LINE_BYTES], others[FILE_BYTES] = "";
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) != 0 && strlen(others) + strlen(line) < sizeof others)
            strcat(others, line);
    if (file)
        fclose(file);
    file = fopen(path, "we");
    if (!file)
        return false;
    if (bytes == NVML_MEMORY_LIMIT_MAX)
        fprintf(file, "%s%smax\n", others, key);
    else
        fprintf(file, "%s%s%llu\n", others, key, bytes);
    return fclose(file) == 0;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, struct nvml_set_memory_limits *limits)
{
    struct call call;
    char key[LINE_BYTES], soft[PATH_BYTES], hard[PATH_BYTES];
    nvmlReturn_t result = begin_limits(&call, __func__, device, limits ? limits->cgroup : NULL);
    if (result == NVML_SUCCESS) {
        key_of(&call, key);
        snprintf(soft, sizeof soft, "%s/dmem.min", limits->cgroup);
        snprintf(hard, sizeof hard, "%s/dmem.max", limits->cgroup);
        if (!write_limit(soft, key, limits->soft_bytes) || !write_limit(hard, key, limits->hard_bytes))
            result = NVML_ERROR_NO_PERMISSION;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct nvml_get_memory_limits *limits)
{
    struct call call;
    char key[LINE_BYTES], path[PATH_BYTES];
    nvmlReturn_t result = begin_limits(&call, __func__, device, limits ? limits->cgroup : NULL);
    if (result == NVML_SUCCESS) {
        key_of(&call, key);
        snprintf(path, sizeof path, "%s/dmem.min", limits->cgroup);
        limits->soft_bytes = read_limit(path, key, 0);
        snprintf(path, sizeof path, "%s/dmem.max", limits->cgroup);
        limits->hard_bytes = read_limit(path, key, NVML_MEMORY_LIMIT_MAX);
        limits->used_bytes = 0;
    }
    return call_end(&call, result);
}
