"""Grants that the journal has lost: their containers keep their files, and they are known again."""

from collections.abc import Mapping

import pytest

from agent.adapters.grant_wire import decode_grant, encode_grant
from agent.domain.grants import Claim, DeviceNode, Grant, GrantRecord, Mount
from agent.domain.kubelet_books import Entry
from agent.domain.limits_file import MIB, DeviceLimit, LimitsFile
from agent.domain.slices import Amount, worth
from agent.services.cache_gc import CacheGc
from agent.services.lost_grants import LostGrants
from tests.unit.fakes import GPU_A, GPU_B, gpus
from tests.unit.slices_world import World

NAME = "slices-0000000000000001"
A0, B0 = f"{GPU_A}-0", f"{GPU_B}-0"
ANSWER = Grant(
    envs={"A": "1"},
    mounts=(Mount("/usr/local/vgpu", f"/host/vgpu/containers/{NAME}_c", read_only=False),),
    device_nodes=(DeviceNode("/dev/nvidia0", "/dev/nvidia0", "rw"),),
    annotations={"b": "2"},
    cdi_devices=("nvidia.com/gpu=0",),
)


def test_an_answer_is_read_as_it_was_given() -> None:
    assert decode_grant(encode_grant(ANSWER).SerializeToString()) == ANSWER


def test_what_is_no_answer_is_none() -> None:
    assert decode_grant(b"\xff\xff") is None


def entry(*ids: str, answer: bytes = b"") -> Entry:
    return Entry(
        pod_uid="uid-a",
        container="main",
        resource="nvidia.com/gpu",
        device_ids=frozenset(ids),
        grant=NAME,
        answer=answer or encode_grant(ANSWER).SerializeToString(),
    )


def made(limits: Mapping[str, tuple[int, int]] | None) -> LostGrants:
    """With a limits file that says so by GPU (MiB, permille); None: there is no file."""
    file = limits and LimitsFile(
        devices=tuple(
            DeviceLimit(uuid=uuid, memory_limit_bytes=mib * MIB, core_permille=permille)
            for uuid, (mib, permille) in limits.items()
        )
    )
    return LostGrants(
        lambda *asked: file or None if asked == (NAME, "c") else None,
        decode=decode_grant,
        gpus=lambda: gpus(GPU_A, GPU_B),
        worth=lambda: {A0: (GPU_A, Amount(100, 10)), B0: (GPU_B, Amount(200, 20))},
        now_s=lambda: 7.0,
    )


@pytest.mark.parametrize(
    ("limits", "ids", "claims"),
    [
        pytest.param(
            {GPU_A.lower(): (300, 255)}, [A0], (Claim(GPU_A, "NVIDIA", 300, 26),), id="limits file"
        ),
        pytest.param(None, [A0], (Claim(GPU_A, "NVIDIA", 100, 10),), id="what its id is worth"),
    ],
)
def test_its_limits_are_what_the_container_has(
    limits: Mapping[str, tuple[int, int]] | None, ids: list[str], claims: tuple[Claim, ...]
) -> None:
    record = made(limits).adopt(entry(*ids))
    assert record is not None
    assert (record.claims, record.device_ids, record.grant) == (claims, tuple(ids), ANSWER)
    assert (record.pod_uid, record.owner_uid, record.answered) == (NAME, "uid-a", True)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(entry(f"{GPU_A}-old-0"), id="an id that is none any more"),
        pytest.param(entry(A0, answer=b"\xff\xff"), id="an answer that is none"),
    ],
)
def test_what_cannot_be_told_is_not_made_up(one: Entry) -> None:
    assert made(None).adopt(one) is None


# --- with kubelet's books -------------------------------------------------------------------------


def lose_the_journal(world: World) -> None:
    world.log.by_container.clear()
    world.restart()


def test_the_checkpoint_tells_the_answer() -> None:
    kept = World()
    kept.run_pod("a", [A0])
    (one,) = kept.kubelet.entries()
    assert f"/{one.grant}_c" in one.answer.decode()


def test_files_of_containers_without_a_record_stay_while_kubelet_lists_them() -> None:
    """The agent's state was lost: nobody is adopted here, as this world's answers are none."""
    world = World()
    world.run_pod("a", [A0])
    lose_the_journal(world)
    gc = CacheGc(world.caches, world.log, world.pods, after_s=1, now_s=lambda: world.clock() + 1000)
    world.look(after_s=30.0)
    assert gc.collect_once() == 0
    world.end_pod("a")
    world.look()
    assert gc.collect_once() == 1


def test_a_grant_that_kubelet_lists_is_on_record_again() -> None:
    world = World()
    given = world.run_pod("a", [A0])
    (name,) = world.names()
    world.run_pod("other", [B0])
    lose_the_journal(world)

    def adopt(one: Entry) -> GrantRecord | None:
        if one.pod_uid != "uid-a":
            return None
        uuid, part = worth(world.offers, world.inventory.now(), world.sharing)[A0]
        return GrantRecord(
            pod_uid=one.grant,
            namespace="",
            pod_name=one.grant,
            container="c",
            device_ids=tuple(one.device_ids),
            claims=(Claim(uuid, "NVIDIA", part.memory_mib, part.core_percent),),
            grant=given.grant,
            granted_at_s=world.clock(),
        )

    world.adopt = adopt
    world.restart()
    world.look(after_s=30.0)
    assert world.names() == {name: "team/a/main"}
    world.end_pod("a")
    for _ in range(60):
        world.look()
    assert not world.names(), "the checkpoint still lists it, and nobody is adopted by that alone"
