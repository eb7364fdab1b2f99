"""The document of /v1/use: nothing is lost on the way, and whatever arrives is read or refused."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import use_pictures
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.domain.accounting import NodeUse
from agent.domain.bypass import Bypass, Kind
from agent.domain.node_picture import NodePicture
from agent.domain.region import Refusal
from agent.domain.use_json import encode
from agent.domain.use_reading import UnreadableUse, decode

REFUSAL = Refusal(
    number=3, time_ns=1_699_999_990_000_000_000, pid=17, place=0, asked_bytes=4 << 30,
    used_bytes=5 << 30, limit_bytes=8 << 30, largest_bytes=4 << 30, largest_pid=1,
    function="cuMemAlloc_v2",
)  # fmt: skip
BYPASS = Bypass(
    kind=Kind.NO_GRANT, gpu=use_pictures.GPUS[0], namespace="team", pod="sneaky",
    container="shell", pid=4711, program="python3", explained="it has no vGPU of this node",
)  # fmt: skip


def picture() -> NodePicture:
    """Everything that there can be."""
    use = use_pictures.EVERYTHING
    first = replace(use.containers[0], refusals=(REFUSAL,), region_problem="too short")
    return NodePicture(
        answered_at_s=use_pictures.NOW_S,
        node="gpu-node-1",
        agent_version="0.4.0",
        use=replace(use, containers=(first, *use.containers[1:])),
        unhealthy={use_pictures.GPUS[1]: "XID 79"},
        bypasses=(BYPASS,),
        missing=("not registered with kubelet: it does not answer",),
    )


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(picture(), id="everything"),
        pytest.param(replace(picture(), use=NodeUse(), unhealthy={}), id="nothing was looked at yet"),
        pytest.param(replace(picture(), use=use_pictures.crowd(8, 10, 2), unhealthy={}), id="a crowd"),
        pytest.param(replace(picture(), use=replace(use_pictures.EVERYTHING, gpus=(), gpus_problem="no driver"), unhealthy={}), id="no GPUs"),
    ],
)  # fmt: skip
def test_nothing_is_lost(told: NodePicture) -> None:
    assert decode(json.loads(json.dumps(encode(told), allow_nan=False))) == told


# --- names ---------------------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in leaves(inner, f"{path}.{name}").items()}  # fmt: skip
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {k: v for inner in value for k, v in leaves(inner, f"{path}[]").items()}
    return {path.lstrip("."): value}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("version", 1, id="version"),
        pytest.param("taken_at_s", use_pictures.NOW_S - 1.5, id="when"),
        pytest.param("containers[].devices[].memory_limit_bytes", 2 << 30, id="limit"),
        pytest.param("containers[].devices[].driver.memory_used_bytes", 3 << 30, id="by the driver"),
        pytest.param("containers[].devices[].self_reported.used_bytes", 1 << 30, id="by its own word"),
        pytest.param("containers[].devices[].core_limit_permille", 100, id="cores"),
        pytest.param("containers[].enforcement.reason", "musl", id="why not enforced"),
        pytest.param("gpus[].unhealthy_reason", "XID 79", id="unhealthy"),
        pytest.param("bypasses[].kind", "no grant", id="bypass"),
    ],
)  # fmt: skip
def test_names(path: str, value: object) -> None:
    assert leaves(encode(picture()))[path] == value


def test_every_name_is_explained() -> None:
    """In docs/local-api.md, with or without the object that it is in."""
    told = (Path(__file__).parents[2] / "docs" / "local-api.md").read_text()
    explained = {name.rpartition(".")[2] for name in re.findall(r"`([a-z_.]+)`", told)}
    names = {
        re.sub(r"\[.*", "", part)
        for path in leaves(encode(picture()))
        if not path.startswith("rejected_regions.")
        for part in path.split(".")
    }
    assert names - explained == set()


def test_what_a_tenant_can_forge_is_marked() -> None:
    """No other place of the document has what comes out of a usage region."""
    told = encode(picture())
    marked = {path for path in leaves(told) if "self_reported" in path}
    assert marked >= {
        f"containers[].devices[].self_reported.{name}"
        for name in ("used_bytes", "peak_bytes", "gpu_ns", "throttled_ns", "launches", "sm_percent")
    }


@pytest.mark.parametrize(
    "path",
    [
        "containers[].devices[].memory_limit_bytes",
        "containers[].devices[].core_limit_permille",
        "containers[].last_kernel_at_s",
        "containers[].processes[].host_pid",
        "gpus[].driver.memory_used_bytes",
    ],
)
def test_what_is_not_known_is_null(path: str) -> None:
    use = replace(
        use_pictures.EVERYTHING,
        containers=(
            replace(
                use_pictures.EVERYTHING.containers[0],
                devices=use_pictures.EVERYTHING.containers[0].devices[1:],
                last_kernel_s=0,
            ),
        ),
    )
    assert leaves(encode(replace(picture(), use=use)))[path] is None


# --- reading -------------------------------------------------------------------------------------


def changed(path: str, value: object) -> Any:
    document = json.loads(json.dumps(encode(picture())))
    *way, last = path.split("/")
    place = document
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[int(last) if last.isdigit() else last] = value
    return document


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(None, "the document is not an object", id="nothing"),
        pytest.param([], "the document is not an object", id="a list"),
        pytest.param({}, "speaks version None", id="no version"),
        pytest.param({"version": 2}, "speaks version 2 of /v1/use, this program 1", id="another version"),
        pytest.param({"version": True}, "version is not a number", id="a version that is none"),
        pytest.param(changed("gpus", {}), "gpus is not a list", id="no list"),
        pytest.param(changed("gpus/0", 1), r"gpus\[0\] is not an object", id="no object"),
        pytest.param(changed("gpus/1/name", 1), r"gpus\[1\].name is not a text", id="no text"),
        pytest.param(changed("gpus/0/driver/power_watts", "x"), r"gpus\[0\].driver.power_watts is not a number", id="no number"),
        pytest.param(changed("taken_at_s", math.nan), "taken_at_s is not a number", id="NaN"),
        pytest.param(changed("taken_at_s", 10**400), "taken_at_s is not a number", id="endless"),
        pytest.param(changed("containers/0/tier", "magic"), r"containers\[0\].tier is not one of 'kernel', 'hook'", id="an unknown tier"),
        pytest.param(changed("containers/0/processes/0/self_reported/used_bytes", [[]]), r"used_bytes\[0\] is not a number", id="a list of no numbers"),
        pytest.param(changed("not_serving", [1]), r"not_serving\[0\] is not a text", id="a list of no texts"),
        pytest.param(changed("bypasses/0/kind", ""), "kind is not one of", id="an unknown bypass"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(document: object, told: str) -> None:
    with pytest.raises(UnreadableUse, match=told):
        decode(document)


def test_a_newer_agent_may_say_more() -> None:
    assert decode(changed("gpus/0/driver/fan_percent", 12)) == picture()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip
PLACES = sorted(
    path for path in (
        "version", "node", "taken_at_s", "gpus", "containers", "bypasses", "rejected_regions",
        "not_serving", "gpus/0/uuid", "gpus/0/driver", "gpus/0/driver/processes", "gpus/1/index",
        "containers/0/devices", "containers/0/devices/0/totals", "containers/0/enforcement",
        "containers/0/devices/0/self_reported", "containers/0/refusals/0/time_ns",
        "containers/0/processes/0/self_reported", "containers/1/priority",
        "containers/0/devices/0/self_reported/used_bytes", "bypasses/0/explained",
    )
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_document_is_a_picture_or_refused(place: str, value: object) -> None:
    try:
        told = decode(changed(place, value))
    except UnreadableUse as error:
        assert "this program" in str(error) or "cannot be read" in str(error)  # noqa: PT017
        return
    encode(told)
