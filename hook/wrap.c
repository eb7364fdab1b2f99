#include "wrap.h"
#include "contexts.h"
#include "looks.h"
#include "reclaim.h"

CUresult wrap_reserve(struct block **block, enum block_space space, uint64_t bytes, const char *function)
{
    int place;
    *block = NULL;
    if (!charging_bytes(bytes))
        return CUDA_SUCCESS;
    CUresult result = place_of_context(&place);
    if (result != CUDA_SUCCESS)
        return device_unknown(result);
    struct block *kept = block_new(space, place, bytes);
    result = kept ? charge_reclaiming(place, CHARGE_DATA, bytes, function) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        block_free(kept);
        return result;
    }
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    if (real->cuCtxGetCurrent && real->cuCtxGetCurrent(&context) == CUDA_SUCCESS)
        block_set_context(kept, context_whole(context));
    *block = kept;
    return result;
}

void wrap_managed(struct block *block)
{
    if (!block)
        return;
    block_set_managed(block);
    looks_managed(block_device(block), (int64_t)block_bytes(block));
}

static void undo(struct block *block, uint64_t calls)
{
    if (block_managed(block))
        looks_managed(block_device(block), -(int64_t)block_bytes(block));
    charge_back(block_device(block), CHARGE_DATA, block_bytes(block), calls);
    block_free(block);
}

/* What it was charged for is there, at `key`, or is not. */
static CUresult end_call(struct block *block, bool there, unsigned long long key, CUresult result)
{
    if (block && there)
        block_add(block, key, CALL_ENDS);
    else if (block)
        undo(block, CALL_ENDS);
    return result;
}

CUresult wrap_settle(struct block *block, CUresult result, unsigned long long key)
{
    return end_call(block, result == CUDA_SUCCESS, key, result);
}

struct block *wrap_freeing(enum block_space space, unsigned long long key)
{
    return block_take(space, key, CALL_BEGINS);
}

CUresult wrap_freed(struct block *block, CUresult result)
{
    /* Refused as its context, with which it went, has ended before the driver came to that? */
    return end_call(block, block && result != CUDA_SUCCESS && !block_lost(block),
                    block ? block_key(block) : 0, result);
}

void wrap_context_ended(struct block *blocks, bool ended)
{
    for (struct block *block = blocks, *next; block; block = next) {
        next = block_next(block);
        if (ended)
            undo(block, 0);
        else
            block_add(block, block_key(block), 0);
    }
}
