"""Arrays and mipmaps are charged by what their description says."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from memory_calls import *\nstart()\n"


@pytest.mark.parametrize(
    ("make", "end", "mib"),
    [
        pytest.param("array('cuArrayCreate_v2', Array2D(4096, 1024, FLOAT, 4))", "cuArrayDestroy", 64, id="2D"),
        pytest.param("array('cuArrayCreate', Array2DV1(4096, 1024, FLOAT, 4))", "cuArrayDestroy", 64, id="2D, 32 bit"),
        pytest.param("array('cuArrayCreate_v2', Array2D(1 << 20, 0, FLOAT, 4))", "cuArrayDestroy", 16, id="1D"),
        pytest.param(
            "array('cuArray3DCreate_v2', Array3D(512, 512, 64, FLOAT, 1))", "cuArrayDestroy", 64, id="3D",
        ),
        pytest.param(
            "array('cuArray3DCreate', Array3DV1(512, 512, 64, FLOAT, 1))", "cuArrayDestroy", 64, id="3D, 32 bit",
        ),
        pytest.param(
            "array('cuArray3DCreate_v2', Array3D(512, 512, 32, HALF, 4, LAYERED))", "cuArrayDestroy", 64, id="layers",
        ),
        pytest.param(
            "array('cuArray3DCreate_v2', Array3D(1024, 1024, 6, BYTE, 4, CUBEMAP))", "cuArrayDestroy", 24, id="cubemap",
        ),
        pytest.param(
            "array('cuArray3DCreate_v2', Array3D(512, 512, 64, FLOAT, 1, SPARSE))", "cuArrayDestroy", 0, id="sparse",
        ),
        pytest.param(
            "array('cuArray3DCreate_v2', Array3D(512, 512, 64, FLOAT, 1, DEFERRED))", "cuArrayDestroy", 0,
            id="mapped later",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(2048, 2048, 0, FLOAT, 4), 3)", "cuMipmappedArrayDestroy", 84,
            id="mipmap",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(256, 256, 256, BYTE, 4), 2)", "cuMipmappedArrayDestroy", 72,
            id="mipmap in 3D",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(1024, 1024, 8, BYTE, 4, LAYERED), 2)",
            "cuMipmappedArrayDestroy", 40, id="mipmap of layers",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(1024, 1024, 6, BYTE, 4, CUBEMAP), 3)",
            "cuMipmappedArrayDestroy", 31.5, id="mipmap of a cube, whose levels have six faces each",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(1, 1, 0, FLOAT, 4), 4000000000)", "cuMipmappedArrayDestroy",
            512 / (1 << 20), id="more levels than there can be",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(2048, 2048, 0, FLOAT, 4), 0)", "cuMipmappedArrayDestroy", 64,
            id="no levels: the driver makes one",
        ),
        pytest.param(
            "array('cuMipmappedArrayCreate', Array3D(1, 1, 8, FLOAT, 4, LAYERED), 4000000000)",
            "cuMipmappedArrayDestroy", 4096 / (1 << 20), id="more levels of layers than there can be",
        ),
    ],
)  # fmt: skip
def test_both_counts_agree(node: Node, make: str, end: str, mib: float) -> None:
    code = (
        f"result, a = {make}\nheld = both()\nended = cuda.{end}(a)\n"
        "say(result=result, held=held, ended=ended, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "100m"})
    assert (said["result"], said["held"]) == (0, [mib, mib])
    assert (said["ended"], said["left"]) == (0, [0, 0])


@pytest.mark.parametrize(
    "make",
    [
        "array('cuArrayCreate', Array2DV1(4096, 1024, FLOAT, 4))",
        "array('cuArrayCreate_v2', Array2D(4096, 1024, FLOAT, 4))",
        "array('cuArray3DCreate', Array3DV1(512, 512, 64, FLOAT, 1))",
        "array('cuArray3DCreate_v2', Array3D(512, 512, 64, FLOAT, 1))",
        "array('cuMipmappedArrayCreate', Array3D(2048, 2048, 0, FLOAT, 4), 3)",
    ],
    ids=lambda make: make.split("'")[1],
)
@pytest.mark.parametrize("case", ["over the limit", "refused by the driver"])
def test_what_is_refused_is_not_charged(node: Node, make: str, case: str) -> None:
    node.sim.fail(make.split("'")[1], 999)
    limit = "50m" if case == "over the limit" else "100m"
    said = node.run(f"{BEGIN}say(result={make}[0], left=both())", **{LIMIT: limit})
    assert (said["result"], said["left"]) == (2 if case == "over the limit" else 999, [0, 0])


@pytest.mark.parametrize(
    ("call", "result"),
    [
        pytest.param("array('cuArrayCreate_v2', Array2D(0, 9, FLOAT, 1))[0]", 1, id="no width"),
        pytest.param("cuda.cuArrayCreate_v2(None, None)", 1, id="nothing told"),
        pytest.param("cuda.cuArray3DCreate_v2(ctypes.byref(ctypes.c_void_p()), None)", 1, id="no description"),
        pytest.param("array('cuArray3DCreate_v2', Array3D(1 << 62, 1 << 62, 1 << 62, FLOAT, 4))[0]", 1, id="overflow"),
        pytest.param("cuda.cuArrayDestroy(None)", 400, id="destroying nothing"),
        pytest.param("cuda.cuCtxSetCurrent(None) or array('cuArrayCreate_v2', Array2D(9, 9, FLOAT, 1))[0]", 201,
                     id="no context"),
    ],
)  # fmt: skip
def test_odd_calls_get_an_answer_and_leave_nothing_charged(
    node: Node, call: str, result: int
) -> None:
    said = node.run(
        f"{BEGIN}result = {call}\nstart()\nsay(result=result, left=both())", **{LIMIT: "1g"}
    )
    assert (said["result"], said["left"], said["rc"]) == (result, [0, 0], 0)


@pytest.mark.parametrize(
    ("format_", "mib"),
    [
        pytest.param(0x91, 8, id="BC1: half a byte"),
        pytest.param(0x9D, 16, id="BC7: a byte"),
        pytest.param(0xC2, 64, id="UNORM_INT8X4"),
        pytest.param(0xB0, 24, id="NV12"),
        pytest.param(0x50, 64, id="UNORM_INT_101010_2"),
        pytest.param(0xB5, 128, id="a picture in planes, at most"),
        pytest.param(0x7000, 256, id="a format nobody knows, at most"),
    ],
)
def test_other_formats_are_charged_by_their_layout(node: Node, format_: int, mib: int) -> None:
    """This driver does not know them: what is not refused for its size gets another answer."""
    code = f"say(result=array('cuArrayCreate_v2', Array2D(4096, 4096, {format_}, 4))[0])"
    assert node.run(BEGIN + code, **{LIMIT: f"{mib - 1}m"})["result"] == 2
    node.cache.unlink()
    assert node.run(BEGIN + code, **{LIMIT: f"{mib}m"})["result"] == 1


@pytest.mark.parametrize(
    ("made", "end"),
    [
        pytest.param("array('cuArrayCreate_v2', Array2D(4096, 1024, FLOAT, 4))[1].value", "cuda.cuArrayDestroy(ctypes.c_void_p(of))", id="an array"),
        pytest.param("alloc(64)[1]", "free(of)", id="linear memory"),
    ],
)  # fmt: skip
def test_a_texture_is_charged_nothing_beyond_what_it_is_of(node: Node, made: str, end: str) -> None:
    code = (
        f"of = {made}; word = ctypes.c_uint64; texture, words = word(0), (word * 18)(0, of)\n"
        f"words[0] = {int('alloc' in made) * 2}  # CU_RESOURCE_TYPE_ARRAY or _LINEAR\n"
        "r = [cuda.cuTexObjectCreate(ctypes.byref(texture), words, (word * 13)(), None), *both()]\n"
        "r += [cuda.cuTexObjectDestroy(texture), *both()]\n"
        f"say(r=r, ended={end}, left=both())"
    )
    said = node.run(BEGIN + code, **{LIMIT: "64m"})
    assert (said["r"], said["ended"], said["left"]) == ([0, 64, 64] * 2, 0, [0, 0])
