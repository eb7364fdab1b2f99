"""The limits file: the C side and the Python side name the same bytes."""

import subprocess
import sys
from pathlib import Path

import pytest
from built_hook import ROOT

from agent.domain.limits_file import CorePolicy, DeviceLimit, LimitsFile, encode

PRINTER = r"""
#include "limits_layout.h"
#include <inttypes.h>
#include <stdio.h>
int main(void)
{
    static struct limits_file f;
    if (fread(&f, 1, sizeof f, stdin) != sizeof f)
        return 1;
    printf("%d %d %d\n", f.magic == LIMITS_MAGIC, f.version == LIMITS_VERSION, LIMITS_BYTES);
    printf("%" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", f.device_count,
           f.core_policy, f.alive_at_ns, f.region_inode, f.region_id, f.cache_path);
    for (uint32_t i = 0; i < f.device_count; i++) {
        struct limits_device *d = &f.devices[i];
        printf("%" PRIu32 " %" PRIu32 " %02x%02x %" PRIu64 " %" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRIu32 "\n",
               d->sequence, d->flags, d->uuid[0], d->uuid[15], d->memory_limit_bytes, d->core_permille,
               d->lent_permille, d->lent_until_ns, d->blocked_until_ns, d->told_memory_mib,
               d->told_core_permille);
    }
    return 0;
}
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the layout is little endian")
def test_both_sides_name_the_same_bytes(tmp_path: Path) -> None:
    gpu = DeviceLimit(uuid="GPU-a1000000-0000-4000-8000-0000000000b2", memory_limit_bytes=1 << 40,
                      core_permille=301, lent_permille=7, lent_until_ns=1 << 41,
                      blocked_until_ns=1 << 42, told_memory_mib=17,
                      told_core_permille=302)  # fmt: skip
    mig = DeviceLimit(uuid="MIG-c3000000-0000-4000-8000-0000000000d4", oversubscribe=True)
    content = encode(
        LimitsFile(
            devices=(gpu, mig),
            core_policy=CorePolicy.DISABLE,
            cache_path="/usr/local/vgpu/x.cache",
            alive_at_ns=1 << 43,
            region_inode=(1 << 44) + 1,
            region_id=(1 << 63) + 1,
        )
    )
    program = tmp_path / "printer"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O1", "-I", str(ROOT / "hook"),
         "-x", "c", "-", "-o", str(program)],
        input=PRINTER.encode(), check=True, timeout=250,
    )  # fmt: skip
    said = subprocess.run([program], input=content, capture_output=True, check=True, timeout=60)
    assert said.stdout.decode().splitlines() == [
        f"1 1 {len(content)}",
        f"2 2 {1 << 43} {(1 << 44) + 1} {(1 << 63) + 1} /usr/local/vgpu/x.cache",
        f"0 0 a1b2 {1 << 40} 301 7 {1 << 41} {1 << 42} 17 302",
        "0 3 c3d4 0 0 0 0 0 0 0",
    ]
