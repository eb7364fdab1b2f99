"""Lives under gVisor's kernel, where runsc is installed: it has a vDSO, signals and files of its own."""

import os
import shutil

import pytest
from c_programs import compiled
from hooked_programs import LIMIT, Node
from process_lives import lives

RUNSC = shutil.which("runsc")

pytestmark = pytest.mark.skipif(
    not RUNSC or os.geteuid() != 0,
    reason="runsc is not installed (go install gvisor.dev/gvisor/runsc@go), or this is not root",
)


@lives("one", "vfork", "end of who came first")  # which were not run there yet
def test_the_limit_holds(node: Node, life: str, said: list[str]) -> None:
    program = compiled("lives.c", "-ldl", "-lpthread")
    settings = [f"{name}={value}" for name, value in node.environment(**{LIMIT: "100m"}).items()]
    sandbox = [str(RUNSC), "--network=none", "--ignore-cgroups", "do", "env", *settings]
    done = node.run_program([*sandbox, str(program), life], LD_PRELOAD="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == said
