"""Who makes cgroups, by the runtime's own word: kubelet goes by that where it is told.

Kubelets ask from 1.28 on, without a feature gate being set from 1.31 on; containerd answers from
2.0 on, CRI-O from 1.28 on. `cgroupDriver` of kubelet's own file counts only where nobody answers.
"""

from pathlib import Path

import grpc

from agent.doctor.host import Host
from agent.doctor.runtime import runtimes
from agent.wire import rpc
from agent.wire import runtimeconfig_pb2 as cri

ANSWER_S = 3.0
MAX_RECEIVE_BYTES = 1 << 16
NAMES = {cri.SYSTEMD: "systemd", cri.CGROUPFS: "cgroupfs"}


def told_by_runtime(host: Host) -> str:
    """`systemd` or `cgroupfs`, as kubelet's runtime says; empty: it does not."""
    sockets = [host.path(name) for found in runtimes(host)[:1] for name in found.sockets[:1]]
    return next((_asked(socket) for socket in sockets), "")


def _asked(socket: Path) -> str:
    channel = rpc.unix_channel(socket, max_receive_bytes=MAX_RECEIVE_BYTES)
    try:
        answer = rpc.RUNTIME_CONFIG.client(channel)(cri.RuntimeConfigRequest(), timeout=ANSWER_S)
    except grpc.RpcError:
        return ""
    finally:
        channel.close()
    return NAMES.get(answer.linux.cgroup_driver, "") if answer.HasField("linux") else ""
