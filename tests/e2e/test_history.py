"""Random histories over real sockets and real processes: whatever happens, nobody gets another's share.

Pods of random shapes come and go; the agent, kubelet and the API server are restarted in between and
under way; watch events come late. Invariants, checked after every step: an admitted container has exactly the claims the scheduler decided
for it; a refused pod says why; the node's lock is released; kubelet's books name the granted GPUs.
The histories of the allocator alone, thousands of steps with a crash at every effect, are in
tests/wire/test_history.py; these few prove that the whole behaves like its parts.
"""

import random
import signal

import pytest

from agent.sim.node import RESOURCE, Ask, RanPod, SimNode
from agent.sim.scheduler import BIND_PHASE, LOCK, NodeLocked, NoFit
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import got_its_claims, up
from tests.waiting import eventually

STEPS = 40


def some_pod(rng: random.Random) -> list[Ask]:
    """A pod of one to four containers, at least one of which wants a GPU."""
    kinds = rng.choice(
        (["app"], ["app", "app"], ["init", "app"], ["sidecar", "app"], ["init"], ["app"] * 3)
    )
    asks = [
        Ask(
            name=f"c{number}",
            kind=kind,
            vgpus=rng.choice((0, 1, 1, 1, 2)),
            memory_mib=rng.randrange(100, 3000),
            core_percent=rng.randrange(5),
        )
        for number, kind in enumerate(kinds)
    ]
    if all(ask.kind == "init" for ask in asks):
        asks.append(Ask(name="main", vgpus=0))
    if not any(ask.vgpus for ask in asks):
        asks[0] = Ask(name="c0", kind=asks[0].kind, memory_mib=rng.randrange(100, 3000))
    return asks


class History:
    """One random history."""

    def __init__(self, node: SimNode, seed: int) -> None:
        self.node = node
        self.rng = random.Random(seed)  # noqa: S311 - a reproducible story, no secret
        self.pods: list[RanPod] = []
        self.count = 0
        self.admitted = self.refused = 0
        self.twice = False  # two pods are being bound at once

    def step(self) -> None:
        happening = self.rng.choices(
            (self.come, self.come_late, self.come_twice, self.go, self.restart_kubelet,
             self.restart_agent, self.kill_agent, self.restart_api, self.ask_again),
            weights=(10, 3, 3, 4, 1, 1, 1, 1, 2),
        )[0]  # fmt: skip
        happening()
        eventually(lambda: LOCK not in self.node.annotations(), within_s=60, what="lock released")

    def _place(self) -> tuple[str, str, list[Ask], list] | None:
        self.count += 1
        name, asks = f"pod-{self.count}", some_pod(self.rng)
        uid = self.node.create_pod(name, asks)
        try:
            claims = self.node.place_pod(name, asks)
        except (NoFit, NodeLocked):
            self.node.client.ask("DELETE", f"/api/v1/namespaces/team/pods/{name}")
            return None
        return name, uid, asks, claims

    def _admit(self, placed: tuple[str, str, list[Ask], list] | None) -> None:
        if placed is None:
            return
        name, uid, asks, claims = placed
        pod = self.node.offer(name, uid, asks, claims)
        if not pod.admitted.ok:
            self.refused += 1
            assert pod.admitted.message, "a refusal says why"
            return
        self.admitted += 1
        assert got_its_claims(pod, asks), name
        self._judge_books(pod, asks)
        self.pods.append(pod)

    def _judge_books(self, pod: RanPod, asks: list[Ask]) -> None:
        """Kubelet's device ids are of the GPUs that were granted.

        Unless it hands an init container's devices on, which it does without asking; and two pods
        bound at once may be told apart only when kubelet asks for the grant itself.
        """
        if any(ask.kind == "init" and ask.vgpus for ask in asks) or self.twice:
            return
        order = [ask for ask in asks if ask.kind != "app"] + [a for a in asks if a.kind == "app"]
        for ask, claims in zip(order, pod.claims, strict=True):
            ids = pod.admitted.containers[ask.name].device_ids.get(RESOURCE, ())
            assert sorted(id_.rpartition("-")[0] for id_ in ids) == sorted(c.uuid for c in claims)

    def come(self) -> None:
        self._admit(self._place())

    def come_late(self) -> None:
        """Kubelet knows the pod before our watch does."""
        with self.node.api.held_events():
            self._admit(self._place())

    def come_twice(self) -> None:
        """Two pods are bound within the same second, before kubelet sees either."""
        self.twice = True
        placed = [self._place(), self._place()]
        for one in placed:
            self._admit(one)
        self.twice = False

    def go(self) -> None:
        if self.pods:
            self.node.delete_pod(self.pods.pop(self.rng.randrange(len(self.pods))))

    def restart_kubelet(self) -> None:
        self.node.kubelet.restart()
        up(self.node, 20)

    def restart_agent(self) -> None:
        assert self.node.stop_agent() == 0
        self.node.start_agent()
        up(self.node, 20)

    def kill_agent(self) -> None:
        """In the middle of a bind: the pod is placed, kubelet asks the successor."""
        placed = self._place()
        self.node.stop_agent(signal.SIGKILL)
        self.node.start_agent()
        up(self.node, 20)
        self._admit(placed)

    def restart_api(self) -> None:
        self.node.api.restart(lose_history=self.rng.random() < 0.5)
        eventually(lambda: self.node.api.open_watches("pods"), within_s=60)

    def ask_again(self) -> None:
        """A container crashes; kubelet gives it the answer it had."""
        if self.pods:
            pod = self.rng.choice(self.pods)
            name = next(n for n, g in pod.admitted.containers.items() if g.device_ids.get(RESOURCE))
            again = self.node.kubelet.restart_container(pod.uid, name)
            assert again.env == pod.admitted.containers[name].env


@pytest.mark.timeout(600)
@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_everybody_gets_exactly_his_own(
    make_node: NodeMaker, seed: int, behaviour: str
) -> None:
    node = make_node("--device-split-count", "10", behaviour=behaviour, release="2.9")
    history = History(node, seed)
    for _ in range(STEPS):
        history.step()
    assert history.admitted > STEPS // 3, "most pods of a history are served"
    assert eventually(lambda: LOCK not in node.annotations(), within_s=60), "the lock is released"
    for pod in history.pods:
        phase = eventually(lambda p=pod: node.pod_annotations(p.namespace, p.name).get(BIND_PHASE))
        assert phase == "success", pod.name
