/* One sweep, made by hand, and what gpu_sweep.c makes of it. Lines of input, times in us:
 *
 *     launch STREAM LAUNCHED BEGAN ENDED KIND
 *                              one of the sweep; ENDED is - for one that still runs
 *     always STREAM LAUNCHED BEGAN ENDED KIND
 *                              the same of a kind that is always measured
 *     expected KIND COST       what its kind was expected to cost, once it was measured
 *     went_on AT               when anything else was first launched after them
 *     contended                others have the GPU now
 *     seen STREAM              a stream that is in use
 *     busy STREAM              one that was so when the sweep began
 *     known KIND COUNT         sweeps have told of so many of its kind
 *
 * and then
 *
 *     now AT                   judge: prints whether all streams were measured together for a while, until when,
 *                              and how many ran then (- where that has no end); and of each launch what it is
 *                              said to cost, in ns, or -
 *     part STREAM              prints what part of its time one has that is always measured
 *     charged AT COST STREAMS  by then so much more was charged to what is not always measured, and so many are
 *                              in use
 *     away TIME                others of the node had the GPU for so long of the time since then
 *     had FROM UNTIL           prints what one had that ran then and is always measured, in us; - if not known
 *     seen_launch NUMBER       prints whether all beside that launch was measured, and what one says of its kind,
 *                              in ns, that is so long, beside what its kind was expected to cost, 10 us
 *     kind KIND                prints what one is expected to cost, in ns
 */
#include "beside.c"
#include "counters.c"
#include "gpu_lane.c"
#include "gpu_sweep.c"
#include "past.c"
#include "throttle.c"
#include "worked.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEGAN_NS (1000 * MS_NS) /* of the sweep: times are from then on */

struct predictor gpu_time_predictor;
static struct measured_lane lane;
static struct share share;
static size_t launches;

static int64_t at_ns(const char *us) {
  return BEGAN_NS + (int64_t)(atof(us) * 1000);
}

static void launch(bool always, const char *stream, const char *launched,
                   const char *began, const char *ended, const char *kind) {
  struct trace *trace = &lane.traces[launches++];
  trace->stream = strtoull(stream, NULL, 10);
  trace->key = strtoull(kind, NULL, 10);
  trace->launched_ns = at_ns(launched);
  trace->running_since_ns = at_ns(began);
  trace->ended = ended[0] != '-';
  trace->ran_until_ns = trace->ended ? at_ns(ended) : 0;
  trace->queued = trace->running_since_ns > trace->launched_ns;
  trace->run = past_began(&lane.past, trace->stream, trace->running_since_ns);
  if (trace->ended)
    past_ended(&lane.past, trace->run, trace->running_since_ns,
               trace->ran_until_ns);
  trace->sweep = (uint64_t)BEGAN_NS;
  trace->always = always;
  past_launched(&lane.past, trace->run, 0, 0, always);
  trace_goes_out(&lane, trace);
  lane.order[lane.orders++] = (uint16_t)trace_place(&lane, trace);
  atomic_fetch_add(&lane.lane.sweep_out, 1);
}

static int64_t charged_ns;

static void charged(const char *at, const char *cost, const char *streams) {
  charged_ns += (int64_t)(atof(cost) * 1000);
  worked_charged(&lane.worked, &lane.past, at_ns(at), charged_ns,
                 atoi(streams));
}

static void away(const char *time) {
  lane.worked.away_ns += (int64_t)(atof(time) * 1000);
}

static void had(const char *from, const char *until) {
  int64_t before = worked_own_ns(&lane.worked, at_ns(from));
  int64_t after = worked_own_ns(&lane.worked, at_ns(until));
  if (before < 0 || after < 0)
    printf("-\n");
  else
    printf("%.1f\n", (double)(after - before) / 1000);
}

static struct sweep sweep;

static void judge(int64_t now_ns) {
  gpu_sweep_see(&lane, &sweep, now_ns);
  if (!sweep.over) {
    printf("not over\n");
    return;
  }
  for (size_t i = 0; i < launches; i++) {
    struct trace *trace = &lane.traces[i];
    trace->told = trace->sweep != 0 && !trace->always;
    if (!trace->told)
      continue;
    trace->own_ns = trace->single_ns = trace->part_ns =
        past_part_ns(&lane.past, trace->stream, trace->running_since_ns,
                     trace->ran_until_ns);
    gpu_sweep_judge(&lane, &sweep, trace);
  }
  gpu_sweep_learn(&lane, &sweep);
  printf("%s ", sweep.together ? "together" : "apart");
  if (sweep.until_ns == INT64_MAX)
    printf("- -");
  else
    printf("%.1f %d", (double)(sweep.until_ns - BEGAN_NS) / 1000,
           running_beside(&sweep, 0));
  for (size_t i = 0; i < launches; i++)
    if (lane.traces[i].told)
      printf(" %lld", (long long)lane.traces[i].own_ns);
    else
      printf(" -");
  printf("\n");
}

static struct estimate *estimate_of(const char *kind) {
  return estimate_claim(&gpu_time_predictor, strtoull(kind, NULL, 10));
}

static void seen_launch(const struct trace *trace) {
  int64_t ran_ns = trace->ran_until_ns - trace->running_since_ns;
  printf("%d %lld\n", gpu_sweep_saw(&sweep, trace),
         (long long)gpu_sweep_single_ns(&sweep, trace, ran_ns, 10000));
}

int main(void) {
  char line[200], word[5][32];
  lane.lane.share = &share;
  atomic_store(&lane.lane.swept_at_ns, (uint64_t)BEGAN_NS);
  while (fgets(line, sizeof line, stdin)) {
    char what[16];
    int count = sscanf(line, "%15s %31s %31s %31s %31s %31s", what, word[0],
                       word[1], word[2], word[3], word[4]);
    if (count == 6 && strcmp(what, "launch") == 0)
      launch(false, word[0], word[1], word[2], word[3], word[4]);
    else if (count == 6 && strcmp(what, "always") == 0)
      launch(true, word[0], word[1], word[2], word[3], word[4]);
    else if (count == 2 && strcmp(what, "part") == 0)
      printf("%.3f\n", beside_part(&lane.beside[0], strtoull(word[0], NULL, 10)));
    else if (count == 2 && strcmp(what, "away") == 0)
      away(word[0]);
    else if (count == 4 && strcmp(what, "charged") == 0)
      charged(word[0], word[1], word[2]);
    else if (count == 3 && strcmp(what, "had") == 0)
      had(word[0], word[1]);
    else if (count == 2 && strcmp(what, "seen_launch") == 0)
      seen_launch(&lane.traces[atoi(word[0])]);
    else if (count == 3 && strcmp(what, "expected") == 0)
      estimate_set(estimate_of(word[0]), (int64_t)(atof(word[1]) * 1000));
    else if (count == 2 && strcmp(what, "went_on") == 0)
      atomic_store(&lane.lane.went_on_at_ns, (uint64_t)at_ns(word[0]));
    else if (count == 1 && strcmp(what, "contended") == 0)
      atomic_store(&share.contended_at_ns, (uint64_t)BEGAN_NS);
    else if (count == 2 && strcmp(what, "seen") == 0)
      atomic_fetch_or(&lane.lane.streams_seen, gpu_time_stream_bit(&lane.lane, strtoull(word[0], NULL, 10), 0, 0));
    else if (count == 2 && strcmp(what, "busy") == 0)
      atomic_fetch_or(&lane.lane.busy_before, gpu_time_stream_bit(&lane.lane, strtoull(word[0], NULL, 10), 0, 0));
    else if (count == 3 && strcmp(what, "known") == 0)
      trace_doubt(&lane, strtoull(word[0], NULL, 10))->swept = atoi(word[1]);
    else if (count == 2 && strcmp(what, "now") == 0)
      judge(at_ns(word[0]));
    else if (count == 2 && strcmp(what, "kind") == 0)
      printf("%u\n", (unsigned)atomic_load(&estimate_of(word[0])->ns));
    else
      return 1;
  }
  return 0;
}
