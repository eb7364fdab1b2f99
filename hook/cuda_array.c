/* Arrays and mipmaps, charged by what their description says. */
#include "wrap.h"

enum { ROW_GRANULE = 512, ARRAY_LAYERED = 1 /* CUDA_ARRAY3D_LAYERED */, BLOCK_SIDE = 4 };

/* How a format lies in memory: so many bits for each texel, or for each texel of a compressed block. */
struct layout {
    unsigned bits;
    bool per_channel, compressed;
};

static struct layout layout_of(int format)
{
    static const struct {
        unsigned char first, last;
        struct layout layout;
    } known[] = {
        {0x01, 0x01, {8, true, false}}, /* UNSIGNED_INT8 */
        {0x02, 0x02, {16, true, false}}, /* UNSIGNED_INT16 */
        {0x03, 0x03, {32, true, false}}, /* UNSIGNED_INT32 */
        {0x08, 0x08, {8, true, false}}, /* SIGNED_INT8 */
        {0x09, 0x09, {16, true, false}}, /* SIGNED_INT16 */
        {0x0A, 0x0A, {32, true, false}}, /* SIGNED_INT32 */
        {0x10, 0x10, {16, true, false}}, /* HALF */
        {0x20, 0x20, {32, true, false}}, /* FLOAT */
        {0x50, 0x50, {32, false, false}}, /* UNORM_INT_101010_2 */
        {0x91, 0x92, {4, false, true}}, /* BC1 */
        {0x93, 0x96, {8, false, true}}, /* BC2, BC3 */
        {0x97, 0x98, {4, false, true}}, /* BC4 */
        {0x99, 0x9E, {8, false, true}}, /* BC5 to BC7 */
        {0xB0, 0xB0, {12, false, false}}, /* NV12 */
        {0xC0, 0xC0, {8, false, false}}, /* UNORM_INT8X1 */
        {0xC1, 0xC1, {16, false, false}}, {0xC2, 0xC2, {32, false, false}},
        {0xC3, 0xC3, {16, false, false}}, /* UNORM_INT16X1 */
        {0xC4, 0xC4, {32, false, false}}, {0xC5, 0xC5, {64, false, false}},
        {0xC6, 0xC6, {8, false, false}}, /* SNORM_INT8X1 */
        {0xC7, 0xC7, {16, false, false}}, {0xC8, 0xC8, {32, false, false}},
        {0xC9, 0xC9, {16, false, false}}, /* SNORM_INT16X1 */
        {0xCA, 0xCA, {32, false, false}}, {0xCB, 0xCB, {64, false, false}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (format >= known[i].first && format <= known[i].last)
            return known[i].layout;
    /* The largest of the pictures in several planes; and more than that nothing has that is newer than this
     * table, unless it has channels. */
    return (struct layout){.bits = format >= 0x51 && format <= 0xB5 ? 64 : 128};
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t at_least_one(uint64_t extent)
{
    return extent ? extent : 1;
}

/* One level, of which each row takes whole granules. */
static uint64_t level_bytes(struct layout layout, unsigned channels, uint64_t width, uint64_t height,
                            uint64_t depth)
{
    uint64_t bits = layout.bits * (uint64_t)(layout.per_channel ? at_least_one(channels) : 1);
    if (layout.compressed) {
        bits *= BLOCK_SIDE; /* a row of blocks; their width divides a granule */
        height = plus(height, BLOCK_SIDE - 1) / BLOCK_SIDE;
    }
    uint64_t row = plus(times(width, bits), 7) / 8;
    row = plus(row, ROW_GRANULE - 1) / ROW_GRANULE;
    return times(times(row, ROW_GRANULE), times(height, depth));
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    /* Memory for these is mapped later, and was charged when it was made (cuMemCreate). */
    if (array->Flags & (ARRAY_SPARSE | ARRAY_DEFERRED_MAPPING))
        return 0;
    bool layered = array->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP);
    uint64_t width = at_least_one(array->Width), height = at_least_one(array->Height);
    uint64_t depth = at_least_one(array->Depth), total = 0;
    struct layout layout = layout_of(array->Format);
    for (unsigned level = 0; level == 0 || level < levels; level++) { /* the driver makes one of none */
        total = plus(total, level_bytes(layout, array->NumChannels, width, height, depth));
        if (width == 1 && height == 1 && (layered || depth == 1))
            break; /* there are no more levels, whatever is asked for */
        width = at_least_one(width / 2);
        height = at_least_one(height / 2);
        depth = layered ? depth : at_least_one(depth / 2);
    }
    return total;
}

/* 0 for descriptions that the driver will refuse. */
static uint64_t bytes_2d(const CUDA_ARRAY_DESCRIPTOR *array)
{
    if (!array || !array->Width)
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = array->Width,
                                    .Height = array->Height,
                                    .Format = array->Format,
                                    .NumChannels = array->NumChannels};
    return array_bytes(&full, 1);
}

static uint64_t bytes_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *array)
{
    if (!array)
        return 0;
    CUDA_ARRAY_DESCRIPTOR full = {array->Width, array->Height, array->Format, array->NumChannels};
    return bytes_2d(&full);
}

static uint64_t bytes_3d(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    return array && array->Width ? array_bytes(array, levels) : 0;
}

static uint64_t bytes_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *array)
{
    if (!array)
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = array->Width,
                                    .Height = array->Height,
                                    .Depth = array->Depth,
                                    .Format = array->Format,
                                    .NumChannels = array->NumChannels,
                                    .Flags = array->Flags};
    return bytes_3d(&full, 1);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor)
{
    ALLOCATE(cuArrayCreate, BLOCK_ARRAY, bytes_2d_v1(descriptor), (uintptr_t)*array, array, descriptor);
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    ALLOCATE(cuArrayCreate_v2, BLOCK_ARRAY, bytes_2d(descriptor), (uintptr_t)*array, array, descriptor);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor)
{
    ALLOCATE(cuArray3DCreate, BLOCK_ARRAY, bytes_3d_v1(descriptor), (uintptr_t)*array, array, descriptor);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    ALLOCATE(cuArray3DCreate_v2, BLOCK_ARRAY, bytes_3d(descriptor, 1), (uintptr_t)*array, array, descriptor);
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    FREE(cuArrayDestroy, BLOCK_ARRAY, (uintptr_t)array, array);
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                       unsigned levels)
{
    ALLOCATE(cuMipmappedArrayCreate, BLOCK_MIPMAP, bytes_3d(descriptor, levels), (uintptr_t)*array, array,
             descriptor, levels);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    FREE(cuMipmappedArrayDestroy, BLOCK_MIPMAP, (uintptr_t)array, array);
}
