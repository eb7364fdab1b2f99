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
        double took_ns, spent_ns; /* time in which they ran and that was looked at; what others had of it, */
        int64_t looked_at_ns; /* when last */
    } of[BESIDE_STREAMS];
};

/* Everything that ran from then until then was measured. */
void beside_learn(struct beside *beside, const struct past *past, int64_t from_ns, int64_t until_ns);

/* Between two looks so much was spent on what is not always measured; `away_ns`: what others had of the time,
 * for each context. */
void beside_look(struct beside *beside, const struct past *past, int64_t from_ns, int64_t until_ns,
                 const int64_t *away_ns, int64_t spent_ns);

/* What one of that stream has of what it seems to have, of 1; 0 where nothing is known. By looks for those
 * that run for as long: in sweeps others always run beside them, at other times they may not. */
double beside_part(const struct beside *beside, uint64_t stream);
double beside_part_by_looks(const struct beside *beside, uint64_t stream);

#endif
