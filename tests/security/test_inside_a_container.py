"""The attacks of tests/security/attacks.py, each from inside a real container, and what comes of it.

The container is runc's, the agent runs with its default intervals. Simulated is the driver, whose
list of processes the test completes as a real one would: it names the pids of the host, which the
simulated libraries inside a pid namespace do not know.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from built_hook import built, sim_libraries

from agent.domain.region import TAIL, TAIL_OFFSET
from agent.sim.container import Container, ContainerError
from tests.hook.test_runc import MIB, TENANT, Pod, libc_directory, pod, scratch, tools
from tests.security.attacks import ATTACKS, Attack, Outcome
from tests.waiting import eventually

__all__ = ["pod", "scratch", "tools"]
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("runc")]

# That it takes 5 s at most is shown in virtual time (test_detection_time.py). Here it is shown that it is
# detected at all, on a machine that may be busy with other tests.
TRIES = 5
DETECTED_WITHIN_S = 30.0
TOO_MUCH, LEFT = 1500, 100
NUMBERS = itertools.count()
EVIL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

/* The C library's own dlsym, past everybody who is in front of it. */
void *dlsym(void *handle, const char *name)
{
    static void *(*own)(void *, const char *);
    if (!own) {
        void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
        own = dlvsym(libc, "dlsym", "GLIBC_2.34");
        if (!own)
            own = dlvsym(dlopen("libdl.so.2", RTLD_LAZY), "dlsym", "GLIBC_2.2.5");
    }
    return own(handle, name);
}
"""


@pytest.fixture(scope="module")
def victim(pod: Pod) -> Pod:
    """The pod of tests/hook/test_runc.py, with the means for the attacks, and default intervals."""
    rootfs = pod.bundle.directory / "rootfs"
    source = rootfs / "evil.c"
    source.write_text(EVIL)
    # The libc of all other tests' programs: another one would be compiled first, for minutes.
    target = f"{os.uname().machine}-linux-gnu.2.17"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", target]
    library = rootfs / "usr" / "lib" / "evil.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    ledger = TAIL_OFFSET + TAIL["devices"] + TAIL["device.ledger"]
    for name, text in {
        # A static program that sits there, as one that speaks to the driver by itself would.
        "busybox-tenant": "exec /bin/busybox cat",
        "forge": f"exec /bin/busybox dd if=/dev/zero of=$1 bs=8 seek={ledger // 8} count=1 conv=notrunc",
    }.items():
        script = rootfs / "usr" / "bin" / name
        script.write_text(f"#!/bin/busybox sh\n{text}\n")
        script.chmod(0o755)
    compile_second_namespace(rootfs, compiler)
    pod.node.stop_agent()
    pod.node.start_agent()
    pod.node.wait("readiness", pod.node.ready)
    return pod


def compile_second_namespace(rootfs: Path, compiler: Sequence[str]) -> None:
    """The program, and what it loads: linked to the driver, and to our library and the driver."""
    here, libraries = Path(__file__).parent, [str(sim_libraries() / "libcuda.so.1")]
    inside = [*compiler, "-shared", "-fPIC", str(here / "in_second_namespace.c")]
    for name, linked in {
        "in-second-namespace.so": libraries,
        "hooked-second-namespace.so": [str(built() / "libvgpu.so"), *libraries],
    }.items():
        needed = ["-Wl,--no-as-needed", *linked, "-Wl,--as-needed"]
        subprocess.run([*inside, *needed, "-o", str(rootfs / "usr/lib" / name)], check=True)
    program = [*compiler, str(here / "second_namespace.c"), "-ldl", "-o"]
    subprocess.run([*program, str(rootfs / "usr/bin/second-namespace")], check=True)


@pytest.fixture
def main(victim: Pod) -> Iterator[str]:
    """A container whose main process holds all that was granted but 100 MiB; its name."""
    region = victim.region.read_bytes()
    name = f"vgpu-{os.getpid()}-attack-{next(NUMBERS)}"
    tenant = Container(name, victim.runc.start(victim.bundle, name), isolated=True)
    assert tenant._read_answer("starting").ok
    assert tenant.ask(f"alloc {MIB - LEFT}").ok
    state = victim.node.driver.config_path.parent
    state.chmod(0o777)  # a real driver is there for every user
    for path in state.iterdir():
        path.chmod(0o666)
    yield name
    victim.runc.delete(name)
    tenant.stop()
    if victim.region.exists():  # in place: who has it mapped, and the limits file, know the inode
        victim.region.write_bytes(region)


def attacked(victim: Pod, name: str, attack: Attack) -> "subprocess.Popen[bytes]":
    """The attacker's process, under way."""
    inside = f"/usr/local/vgpu/{victim.region.name}"
    settings = {
        "TENANT": TENANT,
        "REGION": inside,
        "LOADER": str(next(p for p in loader_of(victim))),
        "DRIVER": str(libc_directory() / "libcuda.so.1"),
        "PATH": "/usr/bin:/bin",
    }
    lines = [f"export {key}={value}" for key, value in settings.items()]
    lines += [f'{applet}() {{ /bin/busybox {applet} "$@"; }}' for applet in APPLETS]
    lines += ["mkdir -p /tmp; chmod 1777 /tmp; [ -e /dev/nvidia0 ] || : > /dev/nvidia0"]
    lines += ["exec 2>/tmp/said"]
    script = "\n".join([*lines, attack.script.replace("forge ", "/usr/bin/forge ")])
    return victim.runc.start_another(name, "/bin/busybox", "sh", "-c", script)


APPLETS = ("mkdir", "chmod", "touch", "ln", "cp", "rm", "usleep")


def loader_of(victim: Pod) -> Iterator[Path]:
    """Where the rootfs has glibc's loader."""
    rootfs = victim.bundle.directory / "rootfs"
    for path in sorted(rootfs.rglob("ld-linux-*.so*")):
        yield Path("/") / path.relative_to(rootfs)


def got_past(process: "subprocess.Popen[bytes]", attack: Attack) -> bool:
    """Whether the attacker holds more than was left; fails when the attack itself did not run."""
    attacker = Container("attacker", process, isolated=True)
    ready = attacker._read_answer("starting")
    assert ready.ok is attack.cuda_starts, ready.error
    if not ready.ok:
        return False
    past = attacker.ask(f"alloc {attack.asks_mib}").ok
    if attack.outcome is Outcome.PREVENTED:  # to the MiB, and what is left is still given
        past |= attacker.ask(f"alloc {LEFT + 1}").ok
        assert attacker.ask(f"alloc {LEFT}").ok
    return past


def insisted(
    victim: Pod, name: str, attack: Attack, *, tries: int
) -> "tuple[subprocess.Popen[bytes], bool]":
    """The attacker's last try and whether it got past.

    What may pass need not pass each time: a forged account is put right when somebody's end is
    noticed, which can be between the forger's last stroke and what it asks.
    """
    while True:
        process = attacked(victim, name, attack)
        sits = attack.detected_as == "static"  # and does not speak as a tenant does
        past = process.poll() is None if sits else got_past(process, attack)
        tries -= 1
        if past or not tries:
            return process, past
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait(10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def pids_in(victim: Pod, main_pid: int) -> list[int]:
    """Pids on the host of all processes in the container's pid namespace."""
    namespace = Path(f"/proc/{main_pid}/ns/pid").readlink()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns" / "pid").readlink() == namespace:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def findings(victim: Pod) -> set[str]:
    """What the agent says of the container now."""
    found = set()
    for line in victim.node.fetch("/metrics")[1].splitlines():
        labels, _, value = line.rpartition(" ")
        if labels.startswith("vgpu_container_enforced{") and float(value) == 0:
            found.add(labels.partition('reason="')[2].partition('"')[0])
        if labels.startswith("vgpu_bypass{") and float(value) == 1:
            found.add(labels.partition('kind="')[2].partition('"')[0])
    return found


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_it_comes_to_what_the_table_says(victim: Pod, main: str, attack: Attack) -> None:
    eventually(lambda: not findings(victim), within_s=60, what=f"before: {findings(victim)}")
    may_pass = attack.outcome is not Outcome.PREVENTED
    said = victim.bundle.directory / "rootfs/tmp/said"
    try:
        process, past = insisted(victim, main, attack, tries=TRIES if may_pass else 1)
    except ContainerError as error:
        raise AssertionError(said.read_text()) from error
    listed: list[int] = []
    try:
        assert past == may_pass, said.read_text()
        if attack.outcome is Outcome.DETECTED:
            (state,) = [json.loads(victim.runc._finish("state", main).stdout)]
            listed = [p for p in pids_in(victim, state["pid"]) if p != state["pid"]]
            for pid in listed:  # as the real driver does
                victim.node.driver.process(0, pid, TOO_MUCH)
            began_s = time.monotonic()
            while attack.detected_as not in findings(victim):
                assert time.monotonic() < began_s + DETECTED_WITHIN_S, (listed, findings(victim))
                time.sleep(0.1)
        elif attack.outcome is Outcome.PREVENTED:
            assert "above grant" not in findings(victim)
    finally:
        for pid in listed:
            victim.node.driver.end_process(pid)
        end(process)
