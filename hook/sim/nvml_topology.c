/* Simulated NVML: how near two GPUs are, and which NVLinks go where. Without a `topology` line two GPUs of
 * the same NUMA node share a CPU and others do not.
 */
#include "nvml_call.h"

#include <string.h>

enum { MAX_LINKS = 18 };
#define SWITCH_BUS_ID "00000000:C0:00.0"

static bool joins(const struct sim_pair *pair, int a, int b)
{
    return (pair->first == a && pair->second == b) || (pair->first == b && pair->second == a);
}

/* Position of the second GPU of a call, or -1 when its handle is bad or its GPU does not answer. */
static int other_gpu(const struct call *call, nvmlDevice_t device)
{
    if (!device)
        return -1;
    int position = sim_node_find(call->node, device->uuid);
    return position >= 0 && !call->node->gpus[position].lost ? position : -1;
}

static int common_level(const struct call *call, int other)
{
    const struct sim_node *node = call->node;
    for (size_t i = 0; i < node->pair_count; i++)
        if (node->pairs[i].level >= 0 && joins(&node->pairs[i], call->position, other))
            return node->pairs[i].level;
    return node->gpus[call->position].numa_node == node->gpus[other].numa_node ? NVML_TOPOLOGY_NODE
                                                                               : NVML_TOPOLOGY_SYSTEM;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second, int *level)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, first);
    int other = result == NVML_SUCCESS ? other_gpu(&call, second) : -1;
    if (result == NVML_SUCCESS && (!level || other < 0 || other == call.position))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *level = common_level(&call, other);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int *on_same_board)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, first);
    int other = result == NVML_SUCCESS ? other_gpu(&call, second) : -1;
    if (result == NVML_SUCCESS && (!on_same_board || other < 0))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *on_same_board = other == call.position || common_level(&call, other) == NVML_TOPOLOGY_INTERNAL;
    return call_end(&call, result);
}

/* Number of NVLinks of `gpu` in this pair. */
static unsigned links_of(const struct sim_pair *pair, int gpu)
{
    return pair->first == gpu ? pair->links : pair->second == gpu ? pair->links_back : 0;
}

/* The pair that link number `link` of the GPU belongs to, links being numbered in the order of the lines. */
static const struct sim_pair *pair_of_link(const struct call *call, unsigned link)
{
    unsigned first_link = 0;
    for (size_t i = 0; i < call->node->pair_count; i++) {
        unsigned links = links_of(&call->node->pairs[i], call->position);
        if (link < first_link + links)
            return &call->node->pairs[i];
        first_link += links;
    }
    return NULL;
}

static nvmlReturn_t begin_link(struct call *call, const char *function, nvmlDevice_t device, unsigned link)
{
    nvmlReturn_t result = call_begin_device(call, function, device);
    if (result == NVML_SUCCESS && link >= MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && !pair_of_link(call, 0))
        return NVML_ERROR_NOT_SUPPORTED; /* a GPU without NVLink */
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    struct call call;
    nvmlReturn_t result = begin_link(&call, __func__, device, link);
    if (result == NVML_SUCCESS && !active)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *active = pair_of_link(&call, link) != NULL;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                        struct nvml_pci_info *pci)
{
    struct call call;
    nvmlReturn_t result = begin_link(&call, __func__, device, link);
    const struct sim_pair *pair = result == NVML_SUCCESS ? pair_of_link(&call, link) : NULL;
    if (result == NVML_SUCCESS && (!pci || !pair))
        result = pci ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        int remote = pair->first == call.position ? pair->second : pair->first;
        fill_pci(remote >= 0 ? call.node->gpus[remote].bus_id : SWITCH_BUS_ID, pci);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type)
{
    struct call call;
    nvmlReturn_t result = begin_link(&call, __func__, device, link);
    const struct sim_pair *pair = result == NVML_SUCCESS ? pair_of_link(&call, link) : NULL;
    if (result == NVML_SUCCESS && (!type || !pair))
        result = type ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *type = pair->second < 0 ? NVML_REMOTE_SWITCH : NVML_REMOTE_GPU;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, int index, int *status)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, first);
    int other = result == NVML_SUCCESS ? other_gpu(&call, second) : -1;
    if (result == NVML_SUCCESS && (!status || other < 0 || other == call.position))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        bool linked = false, switched_first = false, switched_other = false;
        for (size_t i = 0; i < call.node->pair_count; i++) {
            const struct sim_pair *pair = &call.node->pairs[i];
            bool to_switch = pair->level < 0 && pair->second < 0;
            linked |= pair->level < 0 && joins(pair, call.position, other);
            switched_first |= to_switch && pair->first == call.position;
            switched_other |= to_switch && pair->first == other;
        }
        linked |= switched_first && switched_other;
        *status = index != NVML_P2P_INDEX_NVLINK || linked ? NVML_P2P_OK : NVML_P2P_NOT_SUPPORTED;
    }
    return call_end(&call, result);
}
