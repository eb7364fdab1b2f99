/* The configuration of the simulated driver. */
#include "../../../hook/sim/node.h"
#include "../../../hook/sim/mig_state.h"
#include "fuzz.h"

void mig_state_apply(struct sim_node *node, const char *configuration)
{
    (void)node;
    (void)configuration;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sim_node node;
    char problem[256] = "";
    char *text = fuzz_text(data, size);
    memset(&node, 0, sizeof node);
    fuzz_insist(sim_node_parse(&node, text, strlen(text), problem, sizeof problem) || problem[0]);
    return 0;
}
