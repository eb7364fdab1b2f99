/* Memory that streams allocate from pools: an account per pool, which is charged for what the pool has
 * reserved (reserve.h), and for each address which pool it is from. Thread safe; a child of fork starts
 * empty.
 *
 * What is allocated while a stream is being captured becomes memory of the graph (graphs.h). Pools of host
 * memory and imported ones are not counted: the latter are charged to the process that exported them.
 */
#ifndef VGPU_POOLS_H
#define VGPU_POOLS_H

#include "blocks.h"
#include "cuda_abi.h"
#include "graph_launches.h"
#include "reserve.h"

#include <stdbool.h>
#include <stdint.h>

/* One allocation under way. */
struct pooled {
    enum { POOLED_NOT, POOLED_PLAIN, POOLED_POOL, POOLED_CAPTURED } as;
    CUgraph graph; /* being captured */
    CUdevice device;
    int pool; /* number of the account */
    CUmemoryPool handle;
    CUstream stream;
    uint64_t in; /* the stream, as a number (reserve.h) */
    uint64_t bytes;
    struct block *block;
    const char *function;
    bool per_thread;
    bool stays; /* the current pool, which is not destroyed until pooled_end */
};

/* Before `bytes` are allocated on the stream from the pool (NULL: the current one of the stream's device).
 * CUDA_ERROR_OUT_OF_MEMORY: the driver is not to be asked. Where the pool `stays` it is to be named to the
 * driver: another thread may make another one the current one. */
CUresult pooled_begin(struct pooled *pooled, uint64_t bytes, CUmemoryPool pool, CUstream stream,
                      bool per_thread, const char *function);

/* After the driver answered. Gives the answer for the program: when the pool has grown over the limit, the
 * memory is given back, *address is 0 and the answer CUDA_ERROR_OUT_OF_MEMORY. */
CUresult pooled_end(struct pooled *pooled, CUresult result, CUdeviceptr *address);

/* One address that is being freed, whoever it is from. */
struct freeing {
    CUdeviceptr address;
    struct block *block, *pooled;
    uint64_t in; /* the stream's number */
    CUgraph into; /* it becomes a node of */
    bool of_graph;
};

/* Tells a stream from others that there are at the same time in its context. */
uint64_t stream_number(CUstream stream, bool per_thread);

/* Before the driver is asked: freed in this stream, or at once; or a node that will is put into `captured`,
 * and what is there stays. */
void freeing_begin(struct freeing *freeing, uint64_t in, CUgraph captured, CUdeviceptr address);
CUresult freeing_end(const struct freeing *freeing, CUresult result);

/* The shape of a freeing wrapper of addresses. `in`: as above. `captured`: the graph that the free becomes a
 * node of, if it does. */
#define FREE_ADDRESS(symbol, in, captured, address, ...)                                                     \
    const struct real_cuda *real = real_cuda();                                                              \
    struct freeing freeing;                                                                                  \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    if (depth_inside())                                                                                      \
        return real->symbol(__VA_ARGS__);                                                                    \
    freeing_begin(&freeing, in, captured, address);                                                          \
    return freeing_end(&freeing, CALL(symbol, __VA_ARGS__))

/* What is made known of pools. */
void pool_created(CUmemoryPool pool, const CUmemPoolProps *properties);
void pool_imported(CUmemoryPool pool);

/* Before and after a pool is destroyed. Where it lingers, the driver is not asked: it would tell no more how
 * long it keeps what is not freed, or was freed in a stream that has not come to that. It is destroyed when
 * nothing of it is left. */
struct pool *pool_ending(CUmemoryPool pool);
bool pool_lingers(struct pool *account);
CUresult pool_ended(struct pool *account, CUresult result);

/* Make the charges of pools what the driver has reserved for them: of one, or all of a place. */
enum { EVERY_PLACE = -1 };
void pool_true_up(CUmemoryPool pool);
void pools_true_up(int place);

/* The number of this stream, or any, may become another's: SEVERAL_STREAMS. */
void pools_stream_ends(uint64_t stream);

/* Charged for nothing that is live; and give it back, which waits for what the current context does. */
uint64_t pools_idle_bytes(int place);
void pools_trim(int place);

#endif
