"""Who counts: the living, wherever and however they live; and nobody after that."""

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from built_hook import ROOT, compiler
from c_programs import library
from hooked_programs import LIMIT, Node
from region_files import RegionFile
from tenants import Tenant, tenants
from waiting import eventually

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)
WITHIN_S = 10.0

# --- process.c ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proc(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """process.c with its functions visible."""
    path = tmp_path_factory.mktemp("process") / "process.so"
    flags = [flag for flag in compiler().C_FLAGS if flag != "-fvisibility=hidden"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, "-shared", "process.c", "-o", str(path)],
        cwd=ROOT / "hook", check=True, capture_output=True,
    )  # fmt: skip
    inside = ctypes.CDLL(str(path))
    inside.process_start_time.restype = ctypes.c_uint64
    inside.process_gone.argtypes = [ctypes.c_int32, ctypes.c_uint64]
    inside.process_gone.restype = ctypes.c_bool
    return inside


SLEEP = "import time; time.sleep(100)"
# Its first thread ends, as with pthread_exit in main; another one goes on.
LEADERLESS = (
    "import ctypes, os, threading, time\n"
    "threading.Thread(target=time.sleep, args=(100,)).start()\n"
    "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
)


@contextmanager
def child(code: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_process_is_told_from_its_successor(proc: ctypes.CDLL) -> None:
    with child(SLEEP) as process:
        began = proc.process_start_time(process.pid)
        assert began
        assert not proc.process_gone(process.pid, began)
        assert not proc.process_gone(process.pid, 0)
        assert proc.process_gone(process.pid, began + 1)  # the pid's next owner
    assert proc.process_gone(process.pid, began)
    assert proc.process_start_time(process.pid) == 0


def test_a_zombie_is_gone(proc: ctypes.CDLL) -> None:
    with child("pass") as process:
        eventually(lambda: state(process.pid) == "Z", within_s=WITHIN_S)
        assert proc.process_gone(process.pid, 0)


def test_a_process_outlives_its_first_thread(proc: ctypes.CDLL) -> None:
    with child(LEADERLESS) as process:
        began = proc.process_start_time(process.pid)
        eventually(lambda: state(process.pid) == "Z", within_s=WITHIN_S)
        assert not proc.process_gone(process.pid, began)
        process.kill()
        process.wait()
        assert proc.process_gone(process.pid, began)


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1], ids=["none", "negative", "above any"])
def test_what_is_no_pid_is_gone(proc: ctypes.CDLL, pid: int) -> None:
    assert proc.process_gone(pid, 0)


UNREADABLE = """
#include <errno.h>
#include <fcntl.h>
#include <string.h>
int refusal;
int opened(const char *path, int flags)
{
    if (refusal && !strstr(path, "/self/")) {
        errno = refusal;
        return -1;
    }
    return open(path, flags);
}
"""


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(errno.EMFILE, id="no descriptor was left for a moment"),
        pytest.param(errno.EACCES, id="may not be read"),
        pytest.param(errno.ENOENT, id="hidden"),
    ],
)
def test_who_cannot_be_read_lives_until_there_is_none_of_its_pid(refusal: int) -> None:
    """And may be ending for as long; though one can be read oneself, so that /proc is there and ours."""
    double = "int opened(const char *, int);\n#define open opened\n"
    source = UNREADABLE + double + (ROOT / "hook" / "process.c").read_text()
    inside = ctypes.CDLL(str(library(source, f"-I{ROOT / 'hook'}")))
    inside.process_gone.restype = inside.process_is_exiting.restype = ctypes.c_bool
    inside.process_start_time.restype = ctypes.c_uint64
    ctypes.c_int.in_dll(inside, "refusal").value = 0
    with child(SLEEP) as process:
        began = ctypes.c_uint64(inside.process_start_time(process.pid))
        assert began.value
        asked = inside.process_gone, inside.process_is_exiting
        said = [[ask(process.pid, began) for ask in asked]]
        ctypes.c_int.in_dll(inside, "refusal").value = refusal
        assert inside.process_start_time(process.pid) == 0
        said += [[ask(process.pid, began) for ask in asked]]
    said += [[ask(process.pid, began) for ask in asked]]
    assert said == [[False, False], [False, True], [True, False]]


# --- deaths ---------------------------------------------------------------------------------------


def used(node: Node, watcher: Tenant) -> int:
    """The ledger, after somebody looked."""
    watcher.ask("info")
    return RegionFile(node.cache).ledger()


def test_two_hundred_killed_in_the_middle_of_everything_leave_nothing(node: Node) -> None:
    """Killed while they start, allocate and free; one that stays looks on and takes part."""
    with tenants(node, 1, **{LIMIT: "1000m"}) as (watcher,):
        at_rest = used(node, watcher)
        for round_ in range(50):
            doomed = [Tenant(node, **{LIMIT: "1000m"}) for _ in range(4)]
            for tenant in doomed:
                tenant.tell("churn 300 1000000")
            time.sleep((round_ * 7 % 20) / 1000)  # from the first instructions on
            assert watcher.ask("churn 10 20")["result"] in {0, 2}
            for tenant in doomed:
                tenant.process.kill()
            for tenant in doomed:
                tenant.end()
            if round_ % 10 == 9:
                eventually(
                    lambda: used(node, watcher) == at_rest and RegionFile(node.cache).owned() == 1,
                    within_s=WITHIN_S,
                )
        assert 0 < node.sim.peak_mib(GPU) <= 1000
        rest_mib = watcher.ask("info")["devices"][0]["free_mib"]
        assert watcher.ask(f"alloc {rest_mib}")["ok"]
        assert RegionFile(node.cache).counter("underflows") == 0


def test_what_the_killed_held_is_given_to_who_asks_next(node: Node) -> None:
    """At once, without anybody having looked before."""
    with tenants(node, 1, **{LIMIT: "1000m"}) as (survivor,):
        rest_mib = survivor.ask("info")["devices"][0]["free_mib"]
        for _ in range(20):
            with tenants(node, 1, **{LIMIT: "1000m"}) as (victim,):
                victim.ask("alloc 900")
                assert survivor.ask("alloc 900")["result"] == 2
                victim.end(signal.SIGKILL)
            assert survivor.ask(f"alloc {rest_mib}")["ok"]
            assert survivor.ask("free")["ok"]


@pytest.fixture(scope="module")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver that does nothing: the simulated one has a lock that a stopped process keeps."""
    directory = tmp_path_factory.mktemp("driver")
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-shared",
         "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "null_cuda.c",
         "null_cuda_answers.c", "-ldl", "-o", str(directory / "libcuda.so.1")],
        cwd=ROOT / "tests" / "bench", check=True, capture_output=True,
    )  # fmt: skip
    return directory


def test_stopped_in_the_middle_of_a_change_they_hold_nobody_up(node: Node, no_driver: Path) -> None:
    env = {LIMIT: "1000m", "LD_LIBRARY_PATH": str(no_driver)}
    with tenants(node, 5, **env) as (watcher, *some):
        for tenant in some:
            tenant.tell("churn 100 1000000000")
        for round_ in range(40):
            time.sleep((round_ * 3 % 10) / 1000)
            for tenant in some:
                os.kill(tenant.pid, signal.SIGSTOP)
            for tenant in some:
                eventually(lambda pid=tenant.pid: state(pid) == "T", within_s=WITHIN_S)
            assert watcher.ask("alloc 500")["ok"]  # the others never hold more than 4 times 100
            assert watcher.ask("alloc 501")["result"] == 2
            assert RegionFile(node.cache).ledger() <= 1000 << 20
            assert watcher.ask("free")["ok"]
            for tenant in some:
                os.kill(tenant.pid, signal.SIGCONT)
        for tenant in some:
            tenant.end(signal.SIGKILL)
        eventually(lambda: used(node, watcher) == 0, within_s=WITHIN_S)
        assert watcher.ask("alloc 1000")["ok"]
        assert RegionFile(node.cache).counter("underflows") == 0


def test_sixty_four_at_the_limit_never_exceed_it(node: Node) -> None:
    """The simulated driver counts by itself; the most that was ever held is the proof."""
    with tenants(node, 64, **{LIMIT: "1000m"}) as racing:
        for tenant in racing:
            tenant.tell("churn 16 60\nalloc 7\nfree 1\nchurn 250 20\nalloc 7")
        answers = [[tenant.hear() for _ in range(5)] for tenant in racing]
        assert sum(said[-1]["refused"] for said in answers) > 0
        assert {said["result"] for row in answers for said in row} <= {0, 2}
        assert 0 < node.sim.peak_mib(GPU) <= 1000
        region = RegionFile(node.cache)
        assert region.ledger() == sum(region.shown().values())
        assert region.counter("peak") <= 1000 << 20
        assert region.counter("underflows") == 0


def test_one_that_ended_is_not_shown_and_counts_no_more(node: Node) -> None:
    with tenants(node, 2, **{LIMIT: "1000m"}) as (first, second):
        first.ask("alloc 300")
        pid = first.pid
        assert pid in RegionFile(node.cache).shown()
        first.end()
        assert pid not in RegionFile(node.cache).shown()
        eventually(
            lambda: used(node, second) == RegionFile(node.cache).shown()[second.pid],
            within_s=WITHIN_S,
        )


def test_a_child_that_libc_knows_nothing_of_does_not_take_its_parent_with_it(node: Node) -> None:
    """Made by the bare system call, it ends in good order and believes to be the parent."""
    code = (
        "import os\nstart(); alloc(300)\n"
        "child = libc.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 17, 0, 0, 0, 0)\n"
        "if child == 0: libc.exit(0)\n"
        "os.waitpid(child, 0); print('ended', flush=True); input()"
    )
    program = node.start(code, env={LIMIT: "1000m"})
    assert program.stdout is not None
    assert program.stdout.readline() == "ended\n"
    shown = RegionFile(node.cache).shown()
    program.communicate("\n", timeout=60)
    assert shown == {program.pid: 300 << 20}


def test_a_killed_thread_group_without_its_first_thread_is_found_dead(node: Node) -> None:
    """While it lives on in another thread, its memory stays counted."""
    code = (
        "import os, threading, time\n"
        "def live():\n"
        "    start(); print(alloc(900)[0], flush=True); time.sleep(100)\n"
        "threading.Thread(target=live).start()\n"
        "libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"
    )
    program = node.start(code, env={LIMIT: "1000m"})
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "0\n"
        eventually(lambda: state(program.pid) == "Z", within_s=WITHIN_S)
        with tenants(node, 1, **{LIMIT: "1000m"}) as (other,):
            assert other.ask("alloc 500")["result"] == 2
            program.kill()
            program.wait()
            assert other.ask("alloc 500")["ok"]
    finally:
        program.kill()
        program.communicate()


PIDS, TIME = ["--pid"], ["--time", "--boottime", "100000"]


def namespaces(kind: list[str]) -> bool:
    done = subprocess.run(["unshare", *kind, "--fork", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare here")
@pytest.mark.parametrize("kind", [PIDS, TIME], ids=["pids", "time"])
def test_a_process_in_a_namespace_of_its_own_counts_until_it_ends(
    node: Node, kind: list[str]
) -> None:
    """Its pid means somebody else, or nobody, to the others; or they see that it started at another time."""
    if not namespaces(kind):
        pytest.skip("may not make such a namespace here")
    inside = subprocess.Popen(
        ["unshare", *kind, "--fork", "--kill-child", sys.executable, "-c",
         "from cuda_calls import *\nstart(); print(alloc(900)[0], flush=True); input()"],
        env=node.environment(**{LIMIT: "1000m"}),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert inside.stdout is not None
        assert inside.stdout.readline() == "0\n"
        with tenants(node, 1, **{LIMIT: "1000m"}) as (outside,):
            for _ in range(3):  # however often it looks for the dead
                assert outside.ask("alloc 500")["result"] == 2
            inside.kill()
            inside.communicate()
            eventually(lambda: outside.ask("alloc 500")["ok"], within_s=WITHIN_S)
    finally:
        inside.kill()
        inside.communicate()


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare here")
def test_a_process_in_a_time_namespace_of_its_own_takes_nobody_for_dead(node: Node) -> None:
    """To it, they all started at another time than they say."""
    if not namespaces(TIME):
        pytest.skip("may not make a time namespace here")
    code = "from cuda_calls import *\nsay(r=[start(), alloc(500)[0], used_mib()])"
    with tenants(node, 1, **{LIMIT: "1000m"}) as (outside,):
        assert outside.ask("alloc 900")["ok"]
        done = subprocess.run(
            ["unshare", *TIME, "--fork", "--kill-child", sys.executable, "-c", code],
            env=node.environment(**{LIMIT: "1000m"}), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["r"] == [0, 2, 900]


# /proc stays that of outside, which has nobody by the number of the other: it looks as if it were gone.
WITHOUT_PROC = """
import os, subprocess, sys
from cuda_calls import *
HOLD = "from cuda_calls import *; start(); print(alloc(700)[0], flush=True); input()"
start()
for _ in range(200):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if not os.path.exists(f"/proc/{child + 1}"):
        break
other = subprocess.Popen([sys.executable, "-c", HOLD], stdin=-1, stdout=-1, text=True)
r = [other.stdout.readline(), used_mib(), alloc(700)[0]]
other.communicate("\\n")
say(r=r)
"""


@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare here")
def test_a_process_lives_though_the_proc_here_is_of_another_pid_namespace(node: Node) -> None:
    if not namespaces(PIDS):
        pytest.skip("may not make a pid namespace here")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", WITHOUT_PROC],
        env=node.environment(**{LIMIT: "1000m"}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["r"] == ["0\n", 700, 2]


ONLY_ITSELF = """
import os, pathlib, struct
CREATE, ADD, RESTRICT, BENEATH, READ_FILE, NO_NEW_PRIVS = 444, 445, 446, 1, 4, 38
rules = libc.syscall(CREATE, struct.pack("<Q", READ_FILE), ctypes.c_size_t(8), 0)
kept = [f"/{name}" for name in os.listdir("/") if name != "proc"] + [f"/proc/{os.getpid()}"]
for path in kept:
    fd = os.open(path, os.O_PATH)
    libc.syscall(ADD, rules, BENEATH, struct.pack("<Qi", READ_FILE, fd), 0)
    os.close(fd)
done = libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(RESTRICT, rules, 0)
def readable(pid):
    try:
        return bool(pathlib.Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return False
"""


def test_who_may_not_read_of_others_takes_nobody_for_dead(node: Node) -> None:
    """As a profile of Landlock, AppArmor or SELinux may say."""
    version = 1
    if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), version) < 1:
        pytest.skip("the kernel here has no Landlock")
    with tenants(node, 1, **{LIMIT: "1000m"}) as (holder,):
        assert holder.ask("alloc 900")["ok"]
        code = (
            f"{ONLY_ITSELF}start()\n"
            f"say(rules=[done, readable(os.getpid()), readable({holder.pid})],\n"
            "    used=used_mib(), given=alloc(900)[0], rest=alloc(100)[0])"
        )
        said = node.run(code, **{LIMIT: "1000m"})
    assert said["rules"] == [0, True, False], said["stderr"]
    assert (said["used"], said["given"], said["rest"]) == (900, 2, 0)


@pytest.mark.parametrize(
    ("begin", "then", "kept"),
    [
        pytest.param("start(); alloc(900)", "pass", True, id="a child that goes on"),
        pytest.param(
            "start()", "pass", True, id="a child of before anything was allocated"
        ),
        pytest.param(
            "start(); alloc(900)", "os.fork() and os._exit(0)", True, id="a child of a child"
        ),
        pytest.param("pass", "pass", False, id="a child of before CUDA was used"),
        pytest.param(
            "start(); alloc(900)", "os.execv('/bin/sleep', ['sleep', '100'])", False,
            id="one that executes a program",
        ),
    ],
)  # fmt: skip
def test_what_a_process_held_is_kept_for_as_long_as_a_child_has_the_drivers_files(
    node: Node, begin: str, then: str, kept: bool
) -> None:
    """The driver frees it only then: workers of a loader that outlive a killed rank. Not with others' files."""
    code = (
        "import os, time\n"
        f"{begin}\n"
        "if os.fork() == 0:\n"
        f"    {then}\n"
        "    print(os.getpid(), flush=True); time.sleep(100)\n"
        "start(); alloc(900)\n"
        "time.sleep(100)"
    )
    if "execv" in then:
        code = code.replace("os.execv", "print(os.getpid(), flush=True); os.execv")
    program = node.start(code, env={LIMIT: "1000m"})
    try:
        assert program.stdout is not None
        child_pid = int(program.stdout.readline())
        with tenants(node, 1, **{LIMIT: "1000m"}) as (other,):
            eventually(
                lambda: other.ask("alloc 500")["result"] == 2 or not other.ask("free"),
                within_s=WITHIN_S,
            )
            program.kill()
            program.wait()
            if kept:
                assert all(other.ask("alloc 500")["result"] == 2 for _ in range(3))
                os.kill(child_pid, signal.SIGKILL)
            eventually(lambda: other.ask("alloc 500")["ok"], within_s=WITHIN_S)
            if not kept:
                os.kill(child_pid, signal.SIGKILL)  # it was alive until now
        assert node.sim.peak_mib(GPU) <= 1000  # by whoever really holds it
    finally:
        program.kill()
        program.communicate()


def test_what_a_process_held_is_kept_in_the_program_that_it_executes_beside_a_child(
    node: Node,
) -> None:
    """The child has the driver's files, and with them the memory; once it has ended, that is there again.

    Also when it does so again, and what NVML lists for its pid is that of all its programs.
    """
    node.sim.hidden_pids()
    code = (
        "import os, signal, sys, time\n"
        "from cuda_calls import *\n"
        "from memory_calls import pid_told\n"
        "start(); pid_told()\n"
        "children = [int(word) for word in sys.argv[1:]]\n"
        "if len(children) < 2:\n"
        "    took = alloc((400, 200)[len(children)])[0]\n"
        "    child = os.fork()\n"
        "    if child == 0: os.close(1); time.sleep(100); os._exit(0)\n"
        "    again = [*sys.orig_argv, str(child)]\n"
        "    os.execv(sys.executable, again) if took == 0 else os._exit(1)\n"
        "time.sleep(1.1)\n"  # NVML's figure is asked for once a second
        "fits, less = alloc(300); free(less)\n"
        "beside = alloc(600)[0]\n"
        "for child in children: os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n"
        "say(fits=fits, beside=beside, then=alloc(600)[0])"
    )
    said = node.run(code, **{LIMIT: "1000m"})
    assert (said["fits"], said["beside"], said["then"]) == (0, 2, 0), said["stderr"]
    assert node.sim.peak_mib(GPU) <= 1000


def test_a_program_executed_in_its_place_holds_nothing(node: Node) -> None:
    """Though it has the pid and the start time of what was there before, and uses no CUDA."""
    code = (
        "import os\nstart()\n"
        "while alloc(900)[0]: pass\n"  # the other one has some for a moment
        "input()\nos.execv('/bin/sleep', ['sleep', '100'])"
    )
    program = node.start(code, env={LIMIT: "1000m"})
    try:
        assert program.stdin is not None
        with tenants(node, 1, **{LIMIT: "1000m"}) as (other,):
            eventually(
                lambda: other.ask("alloc 500")["result"] == 2 or not other.ask("free"),
                within_s=WITHIN_S,
            )
            program.stdin.write("\n")
            program.stdin.flush()
            comm = Path(f"/proc/{program.pid}/comm")
            eventually(lambda: comm.read_text() == "sleep\n", within_s=WITHIN_S)
            assert other.ask("alloc 500")["ok"]
    finally:
        program.kill()
        program.communicate()
