"""Everything that can go wrong, named by what somebody must do about it.

Each message is a sentence: what is wrong, why, what to do. Messages of `AllocateRefused` are
shown by kubelet to the owner of the pod, word for word.
"""


class AgentError(Exception):
    """Something the agent understands; `str(error)` is meant for a person."""


class ConfigError(AgentError):
    """A setting is wrong; the agent does not start with it."""


# --- Allocate: read by the owner of the pod -------------------------------------------------


class AllocateRefused(AgentError):
    """Base of the answers with which a container is refused its vGPUs."""


class NoPendingPod(AllocateRefused):
    """No pod on this node is waiting for what kubelet asks for."""


class MalformedAnnotation(AllocateRefused):
    """The scheduler's decision cannot be read."""


class CountMismatch(AllocateRefused):
    """Kubelet and the scheduler disagree on the number of vGPUs of a container."""


class UnknownDevice(AllocateRefused):
    """A device id or GPU that this node does not have."""


class RequestRefused(AllocateRefused):
    """The node's settings do not allow what the pod asks for."""


class NodeNotReady(AllocateRefused):
    """The node cannot make the grant now: disk full, hook missing, budget used up."""


class BudgetExceeded(NodeNotReady):
    """The time kubelet may be kept waiting is used up: it blocks every pod of the node."""


# --- API server ------------------------------------------------------------------------------


class ClusterError(AgentError):
    """Base of what the API server, or the way to it, answered.

    `code` is the HTTP status with which it was refused; 0 when there was no usable answer.
    """

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class ClusterUnavailable(ClusterError):
    """No usable answer: refused, timed out, 429 or 5xx. Worth trying again."""

    def __init__(self, message: str, *, code: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class ClusterConflict(ClusterError):
    """The object is no longer what the caller took it for (409, or a failed `test`)."""


class ClusterGone(ClusterError):
    """The object or the resource version no longer exists (404, 410)."""


class ClusterDenied(ClusterError):
    """Credentials or RBAC do not allow it (401, 403)."""


class ClusterForbids(ClusterDenied):
    """RBAC allows it, and a policy or an admission webhook of the cluster does not."""


# --- NVML ------------------------------------------------------------------------------------


class NvmlError(AgentError):
    """Base of what the driver answered; `code` is the NVML return code."""

    def __init__(self, message: str, *, code: int = 999) -> None:
        super().__init__(message)
        self.code = code


class NvmlAbsent(NvmlError):
    """No driver library, or no driver behind it: wait, or leave."""


class NvmlStale(NvmlError):
    """The loaded library no longer fits the kernel module: only a new process helps."""


class MigInUse(NvmlError):
    """Something runs on a part of the GPU that was to be changed."""


class MigNoRoom(NvmlError):
    """Another instance lies where one was to be made."""


class GpuLost(NvmlError):
    """One GPU no longer answers: it fell off the bus or needs a reset."""


# --- kubelet ---------------------------------------------------------------------------------


class KubeletUnavailable(AgentError):
    """Kubelet is not there, or did not take the registration. Worth trying again."""
