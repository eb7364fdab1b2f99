"""Lives under gVisor's kernel, where runsc is installed: it has a vDSO, signals and files of its own."""

import os
import shutil

import pytest
from c_programs import compiled
from hooked_programs import LIMIT, Node

RUNSC = shutil.which("runsc")

pytestmark = pytest.mark.skipif(
    not RUNSC or os.geteuid() != 0,
    reason="runsc is not installed (go install gvisor.dev/gvisor/runsc@go), or this is not root",
)


@pytest.mark.parametrize(
    ("life", "said"),
    [
        pytest.param("end", ["main 0 0", "end 0 2"], id="the limit holds, at exit too"),
        pytest.param("fork first", ["child 0 0", "parent 0 0"], id="fork before cuInit"),
        pytest.param("exec", ["before 0 2", "new 0 0"], id="exec"),
        pytest.param("threads", ["threads 11 21"], id="32 threads race for the first call"),
        pytest.param("signals", ["signals 0 0"], id="lookups in a signal handler"),
    ],
)
def test_the_limit_holds(node: Node, life: str, said: list[str]) -> None:
    program = compiled("lives.c", "-ldl", "-lpthread")
    settings = [f"{name}={value}" for name, value in node.environment(**{LIMIT: "100m"}).items()]
    sandbox = [str(RUNSC), "--network=none", "--ignore-cgroups", "do", "env", *settings]
    done = node.run_program([*sandbox, str(program), life], LD_PRELOAD="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == said
