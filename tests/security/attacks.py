"""The attacks on a limit from inside a container that are tried, and what each is expected to come to.

One table: tests/security/test_inside_a_container.py runs it in a real container, and
docs/threat-model.md repeats it (a test compares them).
"""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What becomes of an attack."""

    PREVENTED = "prevented"
    DETECTED = "detected within 5 s"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack on a memory limit.

    `script` is run by a shell in the container and ends in a program (`$TENANT`) that then asks for
    more than was granted. `$REGION` is the container's usage region. `detected_as` is what the
    agent's metrics call it.
    """

    name: str
    script: str
    outcome: Outcome
    detected_as: str = ""
    asks_mib: int = 1500  # 1000 were granted, of which 900 are held
    cuda_starts: bool = True
    why: str = ""


PREVENTED, DETECTED, NEITHER = Outcome

# As a user that is not root, and in a mount namespace of one's own: the attack's own script lies in
# /tmp/attack then.
MALLORY = (
    "echo 'mallory::12345:12345::/tmp:/bin/sh' > /etc/passwd; ln -sf busybox /bin/sh; "
    "busybox printf '#!/bin/sh\n%s\n' \"$ATTACK\" > /tmp/attack; chmod 755 /tmp/attack; "
)
AS_MALLORY = MALLORY + "exec busybox su -p mallory -c /tmp/attack"
IN_A_NAMESPACE = (
    MALLORY + "exec busybox su -p mallory -c 'exec busybox unshare -U -r -m /tmp/attack'"
)

ATTACKS = (
    Attack(
        name="variables that raise or switch off limits",
        script="CUDA_DEVICE_MEMORY_LIMIT=0 CUDA_DEVICE_MEMORY_LIMIT_0=999999m CUDA_DISABLE_CONTROL=true "
        "CUDA_OVERSUBSCRIBE=true GPU_CORE_UTILIZATION_POLICY=disable CUDA_DEVICE_SM_LIMIT=0 "
        "NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES=0 LD_PRELOAD= exec $TENANT",
        outcome=PREVENTED,
        why="the limits file decides, and the environment may only lower",
    ),
    Attack(
        name="a usage region of one's own, by variable",
        script="CUDA_DEVICE_MEMORY_SHARED_CACHE=/tmp/mine.cache exec $TENANT",
        outcome=PREVENTED,
        why="the limits file names the region",
    ),
    Attack(
        name="a cleared environment (env -i)",
        script="exec busybox env -i VGPU_SIM_DRIVER=$VGPU_SIM_DRIVER $TENANT",
        outcome=PREVENTED,
        why="the library is loaded by /etc/ld.so.preload and limited by the file",
    ),
    Attack(
        name="a login shell (su)",
        script="echo 'root::0:0::/:/bin/sh' > /etc/passwd; mkdir -p /bin; ln -sf busybox /bin/sh; "
        'exec busybox su - root -c "VGPU_SIM_DRIVER=$VGPU_SIM_DRIVER exec $TENANT"',
        outcome=PREVENTED,
        why="as with env -i",
    ),
    Attack(
        name="a session as sshd makes one",
        script="echo 'root::0:0::/root:/bin/sh' > /etc/passwd; mkdir -p /bin /root; "
        "ln -sf busybox /bin/sh; (exec busybox setsid busybox env -i HOME=/root USER=root "
        "LOGNAME=root SHELL=/bin/sh PATH=/usr/bin:/bin VGPU_SIM_DRIVER=$VGPU_SIM_DRIVER "
        "SSH_CONNECTION='10.0.0.1 1 10.0.0.2 22' /bin/sh -l -c \"cd; exec $TENANT\"); exit $?",
        outcome=PREVENTED,
        why="as with env -i; in place of sshd: a new session, sshd's variables alone, a login shell",
    ),
    Attack(
        name="another user of the container",
        script="ATTACK='exec $TENANT'; " + AS_MALLORY,
        outcome=PREVENTED,
        why="limits file and region are for any user",
    ),
    Attack(
        name="unmounting the preload file",
        script="busybox umount /etc/ld.so.preload; exec $TENANT",
        outcome=PREVENTED,
        why="a container without CAP_SYS_ADMIN cannot; a privileged one can, see below",
    ),
    Attack(
        name="deleting or emptying the preload file",
        script="rm -f /etc/ld.so.preload; busybox truncate -s 0 /etc/ld.so.preload; exec $TENANT",
        outcome=PREVENTED,
        why="it is a mount point, and read-only",
    ),
    Attack(
        name="writing the limits file",
        script="busybox dd if=/dev/zero of=/etc/vgpu.limits bs=4096 count=1 conv=notrunc; exec $TENANT",
        outcome=PREVENTED,
        why="it is mounted read-only",
    ),
    Attack(
        name="hiding the preload file in a mount namespace of one's own",
        script="ATTACK='touch /tmp/empty && busybox mount -o bind /tmp/empty /etc/ld.so.preload "
        "&& exec $TENANT'; " + IN_A_NAMESPACE,
        outcome=DETECTED,
        detected_as="library not loaded",
        why="a runtime whose seccomp profile forbids unshare prevents it (containerd's does)",
    ),
    Attack(
        name="a limits file of one's own in a mount namespace of one's own",
        # A byte of its first device's memory limit, which then is 40 GiB more.
        script="ATTACK='cp /etc/vgpu.limits /tmp/mine && echo | busybox dd of=/tmp/mine bs=1 seek=92 "
        "conv=notrunc && busybox mount -o bind /tmp/mine /etc/vgpu.limits && exec $TENANT'; "
        + IN_A_NAMESPACE,
        outcome=DETECTED,
        detected_as="foreign limits",
        why="the file that a process has mapped is compared with the agent's; a volume of the pod that is "
        "mounted over it is found the same way",
    ),
    Attack(
        name="the same, unmounted when CUDA has started",
        script="ATTACK='cp /etc/vgpu.limits /tmp/mine && echo | busybox dd of=/tmp/mine bs=1 seek=92 "
        "conv=notrunc && busybox mount -o bind /tmp/mine /etc/vgpu.limits && "
        "{ (until busybox grep -q vgpu.limits /proc/$$/maps; do busybox usleep 1000; done; "
        "busybox umount -l /etc/vgpu.limits) & exec $TENANT; }'; " + IN_A_NAMESPACE,
        outcome=DETECTED,
        detected_as="foreign limits",
        why="the kernel calls the file / then, and device and inode are as before",
    ),
    Attack(
        name="no limits file in a mount namespace of one's own",
        script="ATTACK='busybox mount -t tmpfs none /etc && "
        "echo /usr/local/vgpu/libvgpu.so > /etc/ld.so.preload && "
        "exec busybox env -i VGPU_SIM_DRIVER=$VGPU_SIM_DRIVER $TENANT'; " + IN_A_NAMESPACE,
        outcome=DETECTED,
        detected_as="above grant",
        why="the library goes by the environment then, and looks like one that has not come to its limits; "
        "the driver's own list of processes shows it",
    ),
    Attack(
        name="another root directory",
        script="state=$(busybox dirname $VGPU_SIM_DRIVER); export state; "
        "mkdir -p /tmp/r/tmp /tmp/r$state; busybox cp -a /usr /lib* /tmp/r/; chmod -R 777 /tmp/r; "
        "ATTACK='busybox mount -o bind $state /tmp/r$state && exec busybox chroot /tmp/r $TENANT'; "
        + IN_A_NAMESPACE,
        outcome=DETECTED,
        detected_as="library not loaded",
        why="the loader reads /etc/ld.so.preload of the root that it sees",
    ),
    Attack(
        name="a loader of one's own, which reads another preload file",
        script="busybox sed 's#/etc/ld.so.preload#/etc/ld.so.preloae#g' $LOADER > /tmp/ld.so; "
        "chmod +x /tmp/ld.so; exec /tmp/ld.so $TENANT",
        outcome=DETECTED,
        detected_as="static",
        why="a loader is itself a program without one; the driver's list finds it as well",
    ),
    Attack(
        name="a private copy of libcuda in the place of the driver",
        script="mkdir -p /tmp/own && cp $DRIVER /tmp/own/libcuda.so.1 && "
        "LD_LIBRARY_PATH=/tmp/own exec $TENANT",
        outcome=PREVENTED,
        why="what is found by dlsym is ours, whichever copy CUDA was started with",
    ),
    Attack(
        name="a second preload library that looks up the driver itself",
        script="LD_PRELOAD=/usr/lib/evil.so exec $TENANT",
        outcome=PREVENTED,
        why="libc's dlsym is given as ours to who takes it from libc's handle, too",
    ),
    Attack(
        name="a library of one's own under the name of ours",
        script="cp /usr/lib/evil.so /tmp/libvgpu.so; ATTACK='touch /tmp/empty && "
        "busybox mount -o bind /tmp/empty /etc/ld.so.preload && "
        "LD_PRELOAD=/tmp/libvgpu.so exec $TENANT'; " + IN_A_NAMESPACE,
        outcome=DETECTED,
        detected_as="above grant",
        why="it has the name, so not as `library not loaded`; by the driver's own list, see above",
    ),
    Attack(
        name="a second copy of our library, from another path",
        script="cp /usr/local/vgpu/libvgpu.so /tmp/libvgpu.so; "
        "LD_PRELOAD=/tmp/libvgpu.so exec $TENANT",
        outcome=PREVENTED,
        why="whichever of the two is asked, the limits file and the region are the same",
    ),
    Attack(
        name="a second namespace (dlmopen) with a copy of libcuda",
        script="mkdir -p /tmp/own && cp $DRIVER /tmp/own/libcuda.so.1 && "
        "LD_LIBRARY_PATH=/tmp/own:${LOADER%/*} exec second-namespace /usr/lib/in-second-namespace.so",
        outcome=DETECTED,
        detected_as="above grant",
        why="no library is preloaded into it; by the driver's own list of processes",
    ),
    Attack(
        name="a second namespace (dlmopen) with copies of libcuda and of our library",
        script="mkdir -p /tmp/own && cp $DRIVER /tmp/own/libcuda.so.1 && "
        "cp /usr/local/vgpu/libvgpu.so /tmp/own/libvgpu.so && "
        "LD_LIBRARY_PATH=/tmp/own:${LOADER%/*} exec second-namespace /usr/lib/hooked-second-namespace.so",
        outcome=PREVENTED,
        why="the copy there keeps the same limits file and the same region",
    ),
    Attack(
        name="signals to every process of the container",
        script="kill -STOP -1; kill -9 -1; exec $TENANT",
        outcome=PREVENTED,
        why="the first process is not ended from inside, and what it holds stays counted",
    ),
    Attack(
        name="filling shared memory",
        script="busybox dd if=/dev/zero of=/dev/shm/full bs=65536; "
        "if echo more > /dev/shm/more; then exit 9; fi; exec $TENANT",
        outcome=PREVENTED,
        why="nothing of ours is there: on a full /dev/shm the limit holds as before",
    ),
    Attack(
        name="a statically linked program",
        script="exec 3< /dev/nvidia0; exec busybox-tenant",
        outcome=DETECTED,
        detected_as="static",
        why="a stand-in: it holds a device file open, as such a program has to",
    ),
    Attack(
        name="a usage region of random bytes",
        script="busybox dd if=/dev/urandom of=$REGION bs=65536 count=31 conv=notrunc; exec $TENANT",
        outcome=PREVENTED,
        cuda_starts=False,
        why="CUDA does not start where it is not in order",
    ),
    Attack(
        name="cutting the usage region short",
        script="busybox truncate -s 0 $REGION; exec $TENANT",
        outcome=PREVENTED,
        cuda_starts=False,
        why="CUDA does not start",
    ),
    Attack(
        name="figures of the usage region by hand",
        script="(while kill -0 $$; do forge $REGION; usleep 20000; done) & exec $TENANT",
        asks_mib=900,
        outcome=DETECTED,
        detected_as="above grant",
        why="its own container's account; the driver's figures are compared with the grant",
    ),
    # Last: there is no way back for the container.
    Attack(
        name="deleting the usage region",
        script="rm -f $REGION; exec $TENANT",
        outcome=PREVENTED,
        cuda_starts=False,
        why="the limits file names it by inode and id: CUDA does not start",
    ),
)
