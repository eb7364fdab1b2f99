/* The shapes that most wrappers have: reserve, call, undo.
 *
 * `real` and `result` are names of the macros' own that their arguments may use.
 */
#ifndef VGPU_WRAP_H
#define VGPU_WRAP_H

#include "blocks.h"
#include "charge.h"
#include "depth.h"
#include "devices.h"
#include "real.h"

/* Of what few programs call, or seldom: smaller, and some ns slower. */
#define SELDOM __attribute__((minsize))

/* Pass the call on as it is. */
#define PASS(symbol, ...)                                                                                    \
    const struct real_cuda *real = real_cuda();                                                              \
    return real && real->symbol ? real->symbol(__VA_ARGS__) : CUDA_ERROR_NOT_INITIALIZED

/* Call the driver such that what it calls itself, through our exports, is not counted again. */
#define CALL(symbol, ...)                                                                                    \
    __extension__({                                                                                          \
        depth_enter();                                                                                       \
        CUresult answer_ = real->symbol(__VA_ARGS__);                                                        \
        depth_leave();                                                                                       \
        answer_;                                                                                             \
    })

/* Charge `bytes` to the device of the current context and keep a block for it. CUDA_SUCCESS with *block NULL
 * when this call is not counted. */
CUresult wrap_reserve(struct block **block, enum block_space space, uint64_t bytes, const char *function);

/* What it is kept for is managed memory. */
void wrap_managed(struct block *block);

/* Keep the charge under the key the driver gave, or give it back if the driver refused. */
CUresult wrap_settle(struct block *block, CUresult result, unsigned long long key);

/* The shape of an allocating wrapper. `bytes` and `key` are expressions, the latter read after the call. */
#define ALLOCATE(symbol, space, bytes, key, ...)                                                             \
    const struct real_cuda *real = real_cuda();                                                              \
    struct block *block;                                                                                     \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    CUresult result = wrap_reserve(&block, space, bytes, #symbol);                                           \
    if (result != CUDA_SUCCESS)                                                                              \
        return result;                                                                                       \
    result = CALL(symbol, __VA_ARGS__);                                                                      \
    return wrap_settle(block, result, result == CUDA_SUCCESS && block ? (unsigned long long)(key) : 0)

/* The shape of a freeing wrapper. The block leaves the table first, before its key can be given out anew. */
#define FREE(symbol, space, key, ...)                                                                        \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    struct block *block = depth_inside() ? NULL : wrap_freeing(space, (unsigned long long)(key));            \
    CUresult result = CALL(symbol, __VA_ARGS__);                                                             \
    return wrap_freed(block, result)

/* NULL when the key is not ours. */
struct block *wrap_freeing(enum block_space space, unsigned long long key);
CUresult wrap_freed(struct block *block, CUresult result);

/* The driver has freed all that was allocated in a context, or (not `ended`) refused. */
void wrap_context_ended(struct block *blocks, bool ended);

#endif
