"""Which function a program gets when it looks one up, by dlsym or by cuGetProcAddress."""

import subprocess
import sys
from pathlib import Path

import pytest
from hooked_programs import LIMIT, Node

OURS, DRIVER, LIBC = "libvgpu.so", "libcuda.so.1", "libc.so.6"
PER_THREAD = 2


@pytest.mark.parametrize(
    ("expression", "library"),
    [
        pytest.param("cuda.cuMemAlloc_v2", OURS, id="intercepted"),
        pytest.param("cuda.cuMemAlloc", OURS, id="its first ABI"),
        pytest.param("cuda.cuInit", OURS, id="cuInit"),
        pytest.param("cuda.cuGetProcAddress_v2", OURS, id="cuGetProcAddress_v2"),
        pytest.param("cuda.cuCtxGetDevice", DRIVER, id="not intercepted"),
        pytest.param("cuda.cuLaunchKernel", OURS, id="a launch"),
        pytest.param("looked_up('cuMemFree_v2')", OURS, id="RTLD_DEFAULT"),
        pytest.param("looked_up('cuMemFree_v2', None)", OURS, id="the driver's handle"),
        pytest.param("looked_up('cudaMalloc')", "", id="the runtime's names are not ours"),
        pytest.param("looked_up('curl_easy_init')", "", id="nor any other cu"),
        pytest.param("looked_up('cuNothing_v9')", "", id="what nobody has"),
        pytest.param("looked_up('open', -1)", LIBC, id="RTLD_NEXT"),
        pytest.param(
            "[looked_up('open', -1), looked_up('open', -1)][1]", LIBC, id="RTLD_NEXT, twice"
        ),
        pytest.param("looked_up('qsort')", LIBC, id="libc"),
        pytest.param("looked_up('dlsym')", OURS, id="dlsym itself"),
    ],
)
def test_dlsym_replaces_exactly_the_table(node: Node, expression: str, library: str) -> None:
    said = node.run(f"say(owner=owner({expression}))", **{LIMIT: "1g"})
    assert said["owner"] == library


@pytest.mark.parametrize(
    ("name", "version", "flags", "library", "same_as"),
    [
        pytest.param("cuMemAlloc", 12080, 0, OURS, "cuMemAlloc_v2", id="a current program"),
        pytest.param("cuMemAlloc", 3020, 0, OURS, "cuMemAlloc_v2", id="exactly its version"),
        pytest.param("cuMemAlloc", 3010, 0, OURS, "cuMemAlloc", id="a very old program"),
        pytest.param(
            "cuMemAlloc", 12080, PER_THREAD, OURS, "cuMemAlloc_v2", id="per-thread, no stream"
        ),
        pytest.param("cuMemAllocAsync", 12080, 0, OURS, "cuMemAllocAsync", id="legacy stream"),
        pytest.param(
            "cuMemAllocAsync",
            12080,
            PER_THREAD,
            OURS,
            "cuMemAllocAsync_ptsz",
            id="per-thread stream",
        ),
        pytest.param(
            "cuMemFreeAsync", 13000, PER_THREAD, OURS, "cuMemFreeAsync_ptsz", id="a newer one"
        ),
        pytest.param("cuGetProcAddress", 12080, 0, OURS, "cuGetProcAddress_v2", id="itself"),
        pytest.param(
            "cuGetProcAddress", 11040, 0, OURS, "cuGetProcAddress", id="itself, before 12"
        ),
        pytest.param("cuInit", 12080, 0, OURS, "cuInit", id="cuInit"),
        pytest.param("cuStreamQuery", 12080, 0, DRIVER, "cuStreamQuery", id="not intercepted"),
        pytest.param("cuDeviceGetUuid", 12080, 0, DRIVER, "cuDeviceGetUuid_v2", id="only used"),
    ],
)
@pytest.mark.parametrize("function", ["", "_v2"], ids=["v1", "v2"])
def test_cugetprocaddress_keeps_to_the_abi_that_was_asked_for(
    node: Node, name: str, version: int, flags: int, library: str, same_as: str, function: str
) -> None:
    code = (
        f"result, pointer = proc_address({name!r}, {version}, {flags}, {function!r})\n"
        f"say(result=result, owner=owner(pointer), same=pointer == looked_up({same_as!r}, None))"
    )
    said = node.run(code, **{LIMIT: "1g"})
    assert (said["result"], said["owner"], said["same"]) == (0, library, True)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        pytest.param("cuNothing", 12080, id="no such function"),
        pytest.param("cuMemAllocAsync", 11010, id="not yet, in that version"),
        pytest.param("cuMemAlloc_v2", 12080, id="names have no suffix there"),
    ],
)
def test_what_the_driver_does_not_have_is_not_made_up(node: Node, name: str, version: int) -> None:
    code = (
        f"result, pointer = proc_address({name!r}, {version})\nsay(result=result, pointer=pointer)"
    )
    said = node.run(code, **{LIMIT: "1g"})
    assert (said["result"], said["pointer"]) == (500, 0)


@pytest.mark.parametrize("library", ["libc.so.6", "libdl.so.2"])
def test_a_lookup_that_is_taken_from_its_library_is_ours(node: Node, library: str) -> None:
    """As by those who look for the true dlsym."""
    code = (
        "import platform\n"
        "version = {'x86_64': b'GLIBC_2.2.5', 'aarch64': b'GLIBC_2.17'}[platform.machine()]\n"
        f"handle = ctypes.c_void_p(ctypes.CDLL({library!r})._handle)\n"
        "libc.dlvsym.restype = ctypes.c_void_p\n"
        "lookup = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)\n"
        "ways = [looked_up('dlsym', handle.value), libc.dlvsym(handle, b'dlsym', version)]\n"
        "say(found=[owner(lookup(way)(cuda._handle, b'cuMemAlloc_v2')) for way in ways],\n"
        "    dlvsym=owner(looked_up('dlvsym', handle.value)))"
    )
    said = node.run(code)
    assert (said["rc"], said["stderr"]) == (0, "")
    assert [*said["found"], said["dlvsym"]] == ["libvgpu.so"] * 3


@pytest.mark.parametrize("function", ["", "_v2"], ids=["v1", "v2"])
def test_null_arguments_are_the_drivers_business(node: Node, function: str) -> None:
    more = ", None" if function else ""
    code = (
        f"say(result=cuda.cuGetProcAddress{function}(None, None, 12080, ctypes.c_uint64(0){more}))"
    )
    assert node.run(code, **{LIMIT: "1g"})["result"] == 1


def test_a_pointer_from_cugetprocaddress_is_limited(node: Node) -> None:
    code = (
        "start()\n_, pointer = proc_address('cuMemAlloc', 12080)\n"
        "address = ctypes.c_uint64()\n"
        "call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(pointer)\n"
        "say(results=[call(ctypes.byref(address), n * MIB) for n in (60, 60)])"
    )
    assert node.run(code, **{LIMIT: "100m"})["results"] == [0, 2]


def compiled(source: str, out: Path, *flags: str) -> Path:
    """A small C program or library of the test's own."""
    path = out.with_suffix(".c")
    path.write_text(source)
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.17", "-O2",
         str(path), "-o", str(out), *flags],
        check=True, capture_output=True,
    )  # fmt: skip
    return out


def test_another_librarys_function_of_the_same_name_stays_its_own(
    node: Node, tmp_path: Path
) -> None:
    """A stub, a mock or a profiler may export the driver's names."""
    other = compiled("int cuMemAlloc_v2(void) { return 77; }", tmp_path / "libother.so", "-shared")
    code = (
        f"other = ctypes.CDLL({str(other)!r})\n"
        "say(owner=owner(other.cuMemAlloc_v2), result=other.cuMemAlloc_v2())"
    )
    said = node.run(code, **{LIMIT: "1g"})
    assert (said["owner"], said["result"]) == ("libother.so", 77)


DIRECT = """
#include <stdio.h>
int cuInit(unsigned); int cuDevicePrimaryCtxRetain(void **, int); int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long); int cuMemFree_v2(unsigned long long);
int main(void) {
    void *context; unsigned long long address = 0;
    int start = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
    int first = cuMemAlloc_v2(&address, 60 << 20), second = cuMemAlloc_v2(&address, 60 << 20);
    printf("%d %d %d", start, first, second);
    return 0;
}
"""


@pytest.mark.parametrize("flags", [("-fPIE",), ("-fno-pie", "-no-pie")], ids=["pie", "no pie"])
def test_a_program_linked_against_the_driver_is_limited(
    node: Node, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    driver = node.sim.libraries / DRIVER
    program = compiled(DIRECT, tmp_path / "direct", str(driver), *flags)
    done = node.run_program([str(program)], **{LIMIT: "100m"})
    assert (done.stdout, done.stderr, done.returncode) == ("0 0 2", "", 0)


CHATTY = """
/* A driver whose own code calls its exported functions, as real ones do: through the PLT, and by dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
typedef unsigned long long ptr;
static ptr next = 0x1000;
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuDeviceGetUuid(char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = (char)(i + device); return 0; }
int cuMemAlloc_v2(ptr *address, unsigned long bytes) { *address = next; next += bytes; return 0; }
int cuMemAllocManaged(ptr *address, unsigned long bytes, unsigned flags) {
    return flags == 1 ? cuMemAlloc_v2(address, bytes)
                      : ((int (*)(ptr *, unsigned long))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"))(address, bytes);
}
"""


def test_what_the_driver_calls_itself_is_charged_once(node: Node, tmp_path: Path) -> None:
    compiled(CHATTY, tmp_path / "libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    code = (
        "cuda.cuInit(0)\n"
        "say(results=[alloc(60, 'cuMemAllocManaged', 1)[0], alloc(60, 'cuMemAllocManaged', 2)[0],\n"
        "             alloc(60, 'cuMemAlloc_v2')[0]])"
    )
    said = node.run(code, **{LIMIT: "150m", "LD_LIBRARY_PATH": str(tmp_path)})
    assert said["results"] == [0, 0, 2]


def test_a_driver_without_a_function_does_not_get_it_from_us(node: Node, tmp_path: Path) -> None:
    compiled(CHATTY, tmp_path / "libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    code = "say(missing=looked_up('cuMemAllocPitch_v2', None), result=cuda.cuInit(0))"
    said = node.run(code, **{LIMIT: "1g", "LD_LIBRARY_PATH": str(tmp_path)})
    assert (said["missing"], said["result"]) == (0, 0)
