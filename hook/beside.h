/* What launches cost that are measured always, while what runs beside them on other streams is measured in
 * sweeps only (gpu_sweep.h): between these they seem to have had the GPU beside each other alone. Each sweep
 * tells what part they had of that, stream by stream. Pure. One user at a time; times in ns.
 */
#ifndef VGPU_BESIDE_H
#define VGPU_BESIDE_H

#include "past.h"

enum { BESIDE_STREAMS = 32 }; /* that are told apart, those that ran most lately */

/* All zero is one that knows nothing. */
struct beside {
    struct beside_stream {
        uint64_t stream;
        double part_ns, most_ns; /* that its launches had in sweeps, and had there been no others */
    } of[BESIDE_STREAMS];
};

/* Everything that ran from then until then was measured. */
void beside_learn(struct beside *beside, const struct past *past, int64_t from_ns, int64_t until_ns);

/* What one of that stream has of what it seems to have, of 1; 0 where nothing is known. */
double beside_part(const struct beside *beside, uint64_t stream);

#endif
