"""All checks, in the order in which they are done: what is needed comes first."""

from agent.doctor import (
    cluster,
    driver,
    hook,
    kubelet,
    place,
    runtime,
    runtime_below,
    toolkit,
    toolkit_settings,
)

CHECKS = (
    *driver.CHECKS,
    *runtime.CHECKS,
    *toolkit.CHECKS,
    *toolkit_settings.CHECKS,
    *runtime_below.CHECKS,
    *place.CHECKS,
    *kubelet.CHECKS,
    *cluster.CHECKS,
    *hook.CHECKS,
)
