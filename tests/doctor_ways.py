"""Ways to break one thing of a healthy node."""

import json
import shutil
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from built_hook import sim_libraries
from doctor_node import NAME, UUID, DoctorNode, stamp

from agent.adapters.nvml import NvmlDriver
from agent.doctor.finding import Verdict
from agent.errors import GpuLost
from agent.sim.driver import SimGpu
from agent.wire import rpc
from agent.wire import runtimeconfig_pb2 as cri

FAILED, WARNING, SKIPPED = Verdict.FAILED, Verdict.WARNING, Verdict.SKIPPED
UNKNOWN_ERROR = 999  # CUDA's


@dataclass(frozen=True)
class Break:
    """`id` says what is broken; `says` is part of the evidence."""

    check: str
    id: str
    verdict: Verdict
    says: str
    do: Callable[[DoctorNode], Any]
    agent: bool = True  # whether one runs meanwhile


class IllGpus(NvmlDriver):
    """They are listed, and then no longer answer."""

    def probe(self, uuid: str) -> None:
        raise GpuLost(f"GPU {uuid} does not answer: it fell off the bus", code=15)


def gpu(**changes: Any) -> Callable[[DoctorNode], None]:
    return lambda node: node.driver.change_gpu(0, replace(SimGpu(uuid=UUID), **changes))


def all_of(*ways: Callable[[DoctorNode], Any]) -> Callable[[DoctorNode], Any]:
    return lambda node: [do(node) for do in ways]


def settings(**changes: Any) -> Callable[[DoctorNode], None]:
    return lambda node: node.settings.update(changes)


def effects(**changes: Any) -> Callable[[DoctorNode], None]:
    return lambda node: node.effects.update(changes)


def file(name: str, content: str) -> Callable[[DoctorNode], Path]:
    return lambda node: node.write(name, content)


def without(name: str) -> Callable[[DoctorNode], None]:
    return lambda node: node.remove(name)


def deny(*rights: tuple[str, str]) -> Callable[[DoctorNode], None]:
    return lambda node: setattr(node.api, "denied", frozenset(rights))


def nothing_listens(node: DoctorNode) -> None:
    path = node.root / "dp" / "kubelet.sock"
    node.kubelet.stop()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def makes_cgroups(driver: str) -> Callable[[DoctorNode], None]:
    """Containerd says by its CRI who makes cgroups; as it says nothing, it is older than 2.0."""

    def answer(_request: cri.RuntimeConfigRequest, context: Any) -> cri.RuntimeConfigResponse:
        if not driver:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method RuntimeConfig")
        linux = cri.LinuxRuntimeConfiguration(cgroup_driver=getattr(cri, driver.upper()))
        return cri.RuntimeConfigResponse(linux=linux)

    def serve(node: DoctorNode) -> None:
        path = node.tree / "run/containerd/containerd.sock"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = dict([rpc.RUNTIME_CONFIG.handler(answer)])
        handler = grpc.method_handlers_generic_handler(rpc.RUNTIME_CONFIG.service, table)
        server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
        server.add_insecure_port(rpc.unix_target(path))
        server.start()
        node.stack.callback(lambda: server.stop(None).wait())

    return serve


def no_runtime(node: DoctorNode) -> None:
    shutil.rmtree(node.tree / "etc/containerd")


def forget(node: DoctorNode) -> None:
    node.plugin.set_health({})


def foreign_books(node: DoctorNode) -> None:
    content = {"Data": {"RegisteredDevices": {"nvidia.com/gpu": [UUID]}}, "Checksum": 1}
    (node.root / "dp/kubelet_internal_checkpoint").write_text(json.dumps(content))


def hang_api(node: DoctorNode) -> None:
    node.hurried["authorized"] = 0.5
    node.api.hang(seconds=30, resource="selfsubjectaccessreviews")


def hang_driver(node: DoctorNode) -> None:
    node.hurried["nvml"] = 1.0
    node.driver.hang()


def occupied(node: DoctorNode) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    taken.settimeout(0.1)
    node.stack.callback(taken.close)
    node.settings["metrics_address"] = f"127.0.0.1:{taken.getsockname()[1]}"


def give_hook(node: DoctorNode, path: Path, content: bytes) -> None:
    """Another library as the program's own, installed as such."""
    from agent.adapters.hook_files import install_hook
    from agent.version import VERSION

    path.write_bytes(content)
    node.hook = path
    install_hook(path, node.vgpu, VERSION)


def newer_glibc(node: DoctorNode) -> None:
    content = node.hook.read_bytes()
    give_hook(node, node.root / "newer.so", content + b"\0GLIBC_2.38\0")


def toothless(node: DoctorNode) -> None:
    """A library that can be loaded and limits nothing."""
    give_hook(node, node.root / "other.so", (sim_libraries() / "libnvidia-ml.so.1").read_bytes())


def unloadable(node: DoctorNode) -> None:
    """An ELF header of the right machine and nothing behind it."""
    content = bytearray(node.hook.read_bytes())
    content[32:40] = struct.pack("<Q", 1 << 40)  # e_phoff: program headers that are not there
    give_hook(node, node.root / "unloadable.so", bytes(content))


def alien(node: DoctorNode) -> None:
    content = bytearray(node.hook.read_bytes())
    content[18:20] = b"\x08\x00"  # MIPS
    give_hook(node, node.root / "alien.so", bytes(content))


def noexec(node: DoctorNode) -> None:
    line = f"40 21 8:2 / {node.root}/host rw,nosuid,noexec shared:2 - xfs /dev/sdb1 rw\n"
    node.write("proc/self/mountinfo", "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" + line)


def blind(node: DoctorNode) -> None:
    (node.tree / "proc/1/ns/pid").unlink()


def enforcing(node: DoctorNode) -> None:
    node.write("sys/fs/selinux/enforce", "1")


def one_of_two(node: DoctorNode) -> None:
    node.driver.add_gpu()
    node.driver.lost(1)


def no_driver(node: DoctorNode) -> None:
    node.remove("proc/driver/nvidia/version")
    node.driver.driver("absent")


def older_kernel(node: DoctorNode) -> None:
    node.write(
        "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  535.104.05  Sat Aug\n"
    )


def hidden(node: DoctorNode) -> None:
    (node.tree / "proc/driver/nvidia/gpus/0000:20:00.0").mkdir()


def no_local_socket(node: DoctorNode) -> None:
    (node.root / "run/read.sock").unlink()


def time_zone(node: DoctorNode) -> None:
    """The scheduler's clock is eight hours ahead."""
    node.annotate(handshake=stamp("Requesting", ago_s=-8 * 3600))


def written_in_another_zone(node: DoctorNode) -> None:
    """Behind ours, as the API server's own time of the write tells."""
    node.annotate(handshake=stamp("Requesting", ago_s=5 * 3600))
    fields = {"f:metadata": {"f:annotations": {"f:hami.io/node-handshake": {}}}}
    written = {"manager": "scheduler", "time": stamp("x", ago_s=0, form="%Y-%m-%dT%H:%M:%SZ")[2:]}
    node.patch_node({"managedFields": [{**written, "fieldsV1": fields}]})


def wrong_library(node: DoctorNode) -> None:
    node.installed.write_bytes(node.installed.read_bytes()[:-1] + b"!")


def csv_unanswered(node: DoctorNode) -> None:
    """An older scheduler asks, in vain."""
    node.settings["register_format"] = "csv9"
    node.annotate(
        register="GPU-a,10,24576,100,NVIDIA-X,0,true,0,hami-core:",
        handshake=stamp("Requesting", ago_s=600),
    )


def delete_node(node: DoctorNode) -> None:
    node.client.ask("DELETE", f"/api/v1/nodes/{NAME}")


def too_long(node: DoctorNode) -> None:
    """Kubelet's directory at a path that leaves no room for the longer name of our socket."""
    longer = node.root / ("d" * (107 - len(str(node.root)) - len("//kubelet.sock")))
    longer.symlink_to(node.root / "dp")
    node.settings["kubelet_socket"] = longer / "kubelet.sock"


def another_lock(node: DoctorNode) -> None:
    node.lock.release()
