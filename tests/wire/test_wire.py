"""The committed protobuf code is what protoc makes of the committed .proto files."""

import importlib
from pathlib import Path

import google.protobuf
import pytest
from grpc_tools import protoc

from agent.wire import deviceplugin_pb2 as dp
from agent.wire import rpc
from agent.wire import runtimeconfig_pb2 as cri

ROOT = Path(__file__).resolve().parents[2]
PROTOS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("agent/wire/*.proto"))
MODULES = [proto.removesuffix(".proto").replace("/", ".") + "_pb2" for proto in PROTOS]


def test_generated_code_is_current(tmp_path: Path) -> None:
    outputs = (f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    assert protoc.main(["protoc", f"-I{ROOT}", *outputs, *(str(ROOT / p) for p in PROTOS)]) == 0

    for proto in PROTOS:
        for suffix in ("_pb2.py", "_pb2.pyi"):
            name = proto.replace(".proto", suffix)
            assert (tmp_path / name).read_text() == (ROOT / name).read_text(), name


@pytest.mark.parametrize("module", MODULES)
def test_generated_code_loads_with_the_locked_protobuf(module: str) -> None:
    locked = (ROOT / "requirements/run.lock").read_text()

    assert f"protobuf=={google.protobuf.__version__}" in locked
    assert importlib.import_module(module).DESCRIPTOR.message_types_by_name


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        pytest.param(
            dp.RegisterRequest(version="v1beta1", endpoint="a.sock", resource_name="n/g"),
            b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03n/g",
            id="Register: version 1, endpoint 2, resource 3",
        ),
        pytest.param(
            dp.ListAndWatchResponse(
                devices=[
                    dp.Device(
                        id="d",
                        health="Healthy",
                        topology=dp.TopologyInfo(nodes=[dp.NUMANode(id=1)]),
                    )
                ]
            ),
            b"\x0a\x12\x0a\x01d\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01",
            id="Device: id 1, health 2, topology 3; NUMANode: id 1",
        ),
        pytest.param(
            dp.AllocateRequest(
                container_requests=[dp.ContainerAllocateRequest(device_ids=["a", "b"])]
            ),
            b"\x0a\x06\x0a\x01a\x0a\x01b",
            id="Allocate: one list of ids per container",
        ),
        pytest.param(
            dp.ContainerAllocateResponse(
                envs={"K": "V"},
                mounts=[dp.Mount(container_path="/c", host_path="/h", read_only=True)],
                devices=[dp.DeviceSpec(container_path="/d", host_path="/e", permissions="rw")],
                annotations={"A": "B"},
                cdi_devices=[dp.CDIDevice(name="x/y=z")],
            ),
            b"\x0a\x06\x0a\x01K\x12\x01V"
            b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
            b"\x1a\x0c\x0a\x02/d\x12\x02/e\x1a\x02rw"
            b"\x22\x06\x0a\x01A\x12\x01B"
            b"\x2a\x07\x0a\x05x/y=z",
            id="response: envs 1, mounts 2, devices 3, annotations 4, CDI devices 5",
        ),
        pytest.param(
            dp.ContainerPreferredAllocationRequest(
                available_device_ids=["a"], must_include_device_ids=["b"], allocation_size=2
            ),
            b"\x0a\x01a\x12\x01b\x18\x02",
            id="preference: available 1, must include 2, size 3",
        ),
        pytest.param(
            dp.DevicePluginOptions(
                pre_start_required=True, get_preferred_allocation_available=True
            ),
            b"\x08\x01\x10\x01",
            id="options: pre-start 1, preference 2",
        ),
        pytest.param(
            cri.RuntimeConfigResponse(
                linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS)
            ),
            b"\x0a\x02\x08\x01",
            id="runtime: linux 1; its cgroup driver 1, of which cgroupfs is 1",
        ),
    ],
)
def test_field_numbers_are_kubelets(message: object, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire  # type: ignore[attr-defined]


def test_call_tables_are_the_services_of_the_proto_files() -> None:
    described = {
        f"/{service.full_name}/{method.name}": (
            method.input_type,
            method.output_type,
            method.server_streaming,
        )
        for file in (importlib.import_module(module).DESCRIPTOR for module in MODULES)
        for service in file.services_by_name.values()
        for method in service.methods
    }
    written = {
        f"/{call.service}/{call.name}": (
            call.request.DESCRIPTOR,
            call.response.DESCRIPTOR,
            isinstance(call, rpc.ServerStream),
        )
        for call in vars(rpc).values()
        if isinstance(call, rpc.Unary | rpc.ServerStream)
    }
    assert written == described
