"""Mode `hami` with `--unannotated`: pods that the scheduler has said nothing about."""

import signal

import pytest

from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import got_its_claims
from tests.waiting import eventually

SLICE = ("--unannotated", "slice")
MEMORY_MIB = 46068


def unannotated(node: SimNode, name: str, vgpus: int = 1) -> RanPod:
    """A pod that another scheduler has bound to the node."""
    asks = [Ask(vgpus=vgpus)]
    uid = node.create_pod(name, asks, node_name=node.name)
    return node.offer(name, uid, asks)


@pytest.mark.parametrize(
    ("flags", "served"), [pytest.param((), False, id="refuse"), pytest.param(SLICE, True, id="slice")]
)  # fmt: skip
def test_a_pod_without_a_decision(
    make_node: NodeMaker, flags: tuple[str, ...], served: bool
) -> None:
    node = make_node(*flags)
    pod = unannotated(node, "plain", 2)
    assert pod.admitted.ok == served
    if served:
        env = pod.admitted.containers["main"].env
        limits = [
            env[f"CUDA_DEVICE_MEMORY_LIMIT_{n}"]
            for n in range(env["NVIDIA_VISIBLE_DEVICES"].count("GPU-"))
        ]
        assert sum(int(one.removesuffix("m")) for one in limits) == 2 * (MEMORY_MIB // 10)
    else:
        assert "no" in pod.admitted.message


def test_the_scheduler_goes_first(make_node: NodeMaker) -> None:
    """What is decided is granted as ever, and what it has promised is nobody else's."""
    node = make_node(*SLICE, gpus=1)
    asks = [Ask(memory_mib=44000, core_percent=95)]
    decided = node.run_pod("decided", asks)
    assert got_its_claims(decided, asks)
    refused = unannotated(node, "plain")
    assert not refused.admitted.ok
    assert "only 2068 MiB and 5 % of its cores are free" in refused.admitted.message
    node.delete_pod(decided)
    eventually(lambda: unannotated(node, "again").admitted.ok, within_s=60, every_s=1)


def test_the_scheduler_cannot_promise_what_slices_have(make_node: NodeMaker) -> None:
    """It does not know of them."""
    node = make_node(*SLICE, "--accounting-interval", "0.3s", gpus=1)
    assert unannotated(node, "plain").admitted.ok
    eventually(lambda: 'pod="plain"' in node.fetch("/metrics")[1], within_s=60)
    refused = node.run_pod("decided", [Ask(memory_mib=44000)])
    assert not refused.admitted.ok
    assert "have been promised 4606 already" in refused.admitted.message


def test_slices_beside_decisions_survive_the_agent_and_are_cleaned_up(make_node: NodeMaker) -> None:
    node = make_node(
        *SLICE, "--cache-gc-after", "10s", "--cache-gc-interval", "1s",
        "--accounting-interval", "0.3s", gpus=1,
    )  # fmt: skip
    asks = [Ask(memory_mib=1000)]
    decided, plain = node.run_pod("decided", asks), unannotated(node, "plain")
    containers = node.root / "host" / "vgpu" / "containers"
    assert len(list(containers.iterdir())) == 2
    node.stop_agent(signal.SIGKILL)
    node.start_agent()
    eventually(node.ready, within_s=60)

    def shown() -> set[str]:
        page = node.fetch("/metrics")[1]
        return {name for name in ("decided", "plain") if f'pod="{name}"' in page}

    eventually(lambda: shown() == {"decided", "plain"}, within_s=60)
    node.delete_pod(plain)
    eventually(lambda: shown() == {"decided"}, within_s=60)
    eventually(
        lambda: [one.name for one in containers.iterdir()] == [f"{decided.uid}_main"], within_s=50
    )


def test_a_slice_of_a_pod_that_never_ran_is_cleaned_up(make_node: NodeMaker) -> None:
    """It is gone before kubelet could say whose it was; its checkpoint still lists it."""
    node = make_node(*SLICE, "--cache-gc-after", "10s", "--cache-gc-interval", "1s", gpus=1)
    _stays, gone = unannotated(node, "stays"), unannotated(node, "gone")
    node.delete_pod(gone)
    containers = node.root / "host" / "vgpu" / "containers"
    eventually(lambda: len(list(containers.iterdir())) == 1, within_s=150, what="its files go")
