"""Physical memory: charged when it is made, until the driver really has it back."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import SimGpu, made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from memory_calls import *\nstart()\n"
ALL, NONE = [60, 60], [0, 0]


def run(node: Node, steps: str, **env: str) -> list[object]:
    """What each of the steps gives."""
    said = node.run(f"{BEGIN}r = []\n{steps}\nsay(r=r)", **{LIMIT: "100m", **env})
    assert said["rc"] == 0, said["stderr"]
    answers: list[object] = said["r"]
    return answers


def test_a_handle_is_charged_until_it_is_released(node: Node) -> None:
    steps = "e, h = create(60); r += [e, both(), create(60)[0], both(), release(h), both(), create(60)[0]]"
    assert run(node, steps) == [0, ALL, 2, ALL, 0, NONE, 0]
    assert node.sim.peak_mib(GPU) <= 100


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            "r += [release(h), both(), unmap(a, 60), both()]", id="released, then unmapped"
        ),
        pytest.param(
            "r += [unmap(a, 60), both(), release(h), both()]", id="unmapped, then released"
        ),
        pytest.param(
            "k = retain(a); r += [release(h), unmap(a, 60), both()]; release(k); r += [both()]; r.pop(0)",
            id="retained by address",
        ),
        pytest.param(
            "b = reserve(60); map_at(b, 60, h); release(h); r += [unmap(a, 60), both(), unmap(b, 60), both()]",
            id="mapped twice",
        ),
        pytest.param(
            "k = retain(a); release(k); r += [release(h), both(), unmap(a, 60), both()]",
            id="retained and released again",
        ),
    ],
)
def test_memory_stays_charged_as_long_as_anything_holds_it(node: Node, steps: str) -> None:
    before = "_, h = create(60); a = reserve(60); map_at(a, 60, h); r += [both()]\n"
    assert run(node, before + steps) in ([ALL, 0, ALL, 0, NONE], [0, 0, ALL, NONE])


def test_a_handle_that_is_had_from_an_address_keeps_the_memory(node: Node) -> None:
    steps = (
        "_, h = create(60); a = reserve(60); map_at(a, 60, h); release(h)\n"
        "k = retain(a); r += [unmap(a, 60), both(), release(k), both()]"
    )
    assert run(node, steps) == [0, ALL, 0, NONE]


def test_a_handle_keeps_the_memory_though_another_thread_is_unmapping_it(node: Node) -> None:
    steps = (
        "import threading\n"
        "_, h = create(60); a = reserve(60); map_at(a, 60, h); release(h)\n"
        "thread = threading.Thread(target=unmap, args=(a, 60))\n"
        "with held('cuMemUnmap'): thread.start(); time.sleep(0.3); k = retain(a)\n"
        "thread.join(); r += [both(), release(k), both()]"
    )
    assert run(node, steps) == [ALL, 0, NONE]


def test_a_range_of_several_mappings_ends_at_once(node: Node) -> None:
    steps = (
        "a = reserve(60)\n"
        "for i in range(3):\n"
        "    e, h = create(20); map_at(a + i * 20 * MIB, 20, h); release(h)\n"
        "r += [both(), unmap(a, 40), both(), unmap(a + 40 * MIB, 20), both()]"
    )
    assert run(node, steps) == [ALL, 0, [20, 20], 0, NONE]


def test_a_mapping_that_the_driver_does_not_end_stays_charged(node: Node) -> None:
    steps = (
        "_, h = create(60); a = reserve(60); map_at(a, 60, h); release(h)\n"
        "r += [unmap(a, 20), both(), unmap(a, 80), both(), unmap(a, 60), both()]"
    )
    assert run(node, steps) == [1, ALL, 1, ALL, 0, NONE]


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param("u64(0), u64(1 << 62)", id="a quarter of all addresses"),
        pytest.param("u64(0), u64((1 << 64) - 1)", id="all addresses"),
        pytest.param("u64((1 << 64) - 2), u64(1 << 21)", id="beyond the last address"),
        pytest.param("u64(a - 1), u64((1 << 64) - 1)", id="beyond the last address and round"),
        pytest.param("u64(a), u64(0)", id="nothing"),
        pytest.param("u64(a + 1), u64(60 * MIB)", id="not whole pages"),
    ],
)
def test_a_range_that_cannot_be_is_the_drivers_to_judge(node: Node, lies: str) -> None:
    steps = (
        "_, h = create(60); a = reserve(60); map_at(a, 60, h); release(h)\n"
        f"r += [cuda.cuMemUnmap({lies}), both(), unmap(a, 60), both()]"
    )
    assert run(node, steps) == [1, ALL, 0, NONE]


def test_mappings_end_whether_they_are_fewer_than_the_pages_of_the_range_or_more(
    node: Node,
) -> None:
    steps = (
        "a = reserve(60)\n"
        "def piece(at, mib): _, h = create(mib); map_at(a + at * MIB, mib, h); release(h)\n"
        "piece(0, 40); r += [unmap(a, 40), both()]\n"
        "for at in range(0, 60, 2): piece(at, 2)\n"
        "r += [both(), unmap(a + 2 * MIB, 2), both(), unmap(a, 2), unmap(a + 4 * MIB, 56), both()]"
    )
    assert run(node, steps) == [0, NONE, ALL, 0, [58, 58], 0, 0, NONE]


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap"])
def test_a_call_that_the_driver_refuses_changes_nothing(node: Node, call: str) -> None:
    node.sim.fail(call, 999)
    steps = {
        "cuMemCreate": "r += [create(60)[0], both()]",
        "cuMemRelease": "_, h = create(60); r += [release(h), both()]",
        "cuMemMap": "_, h = create(60); r += [map_at(reserve(60), 60, h)]; release(h); r += [both()]",
        "cuMemUnmap": "_, h = create(60); a = reserve(60); map_at(a, 60, h); release(h); r += [unmap(a, 60), both()]",
    }  # fmt: skip
    assert run(node, steps[call]) == [999, ALL if call in {"cuMemRelease", "cuMemUnmap"} else NONE]


def test_a_release_that_the_driver_refuses_leaves_every_reference(node: Node) -> None:
    steps = (
        "_, h = create(60); a = reserve(60); map_at(a, 60, h); k = retain(a); unmap(a, 60)\n"
        "with refused('cuMemRelease'): r += [k == h, release(h), both()]\n"
        "r += [release(h), both(), release(k), both()]"
    )
    assert run(node, steps) == [True, 999, ALL, 0, ALL, 0, NONE]


def test_over_the_limit_the_driver_is_not_asked(node: Node) -> None:
    node.sim.fail("cuMemCreate", 999)
    assert run(node, "r += [create(200)[0]]") == [2]


@pytest.mark.parametrize(
    ("arguments", "result", "held"),
    [
        pytest.param("60, 1", 0, ALL, id="a device"),
        pytest.param("60, 6", 0, ALL, id="a part of a device"),
        pytest.param("60, 6, 1 << 8", 0, ALL, id="another part of it"),
        pytest.param("600, 6, 1 << 8", 2, NONE, id="another part, more than the limit"),
        pytest.param("60, 2", 0, NONE, id="the host"),
        pytest.param("60, 3", 0, NONE, id="a NUMA node"),
        pytest.param("60, 4", 0, NONE, id="this NUMA node"),
        pytest.param("600, 2", 0, NONE, id="the host, more than the limit"),
        pytest.param("60, 9", 801, NONE, id="a place of a release to come, on the device"),
        pytest.param("60, -1", 1, NONE, id="a place that cannot be"),
        pytest.param("60, 5", 1, NONE, id="a place that is only told of imports"),
        pytest.param("60, 1, 7", 101, NONE, id="no such device"),
        pytest.param("60, 1, -1", 101, NONE, id="device -1"),
        pytest.param("60, 1, -2", 101, NONE, id="device -2"),
        pytest.param("60, 1, -(1 << 31)", 101, NONE, id="the lowest of all numbers"),
        pytest.param("600, 1, -3", 101, NONE, id="no such device, more than the limit"),
        pytest.param("61, 1", 1, NONE, id="not whole pages"),
        pytest.param("0, 1", 1, NONE, id="nothing"),
    ],
)
def test_what_is_charged_depends_on_where_the_memory_is(
    node: Node, arguments: str, result: int, held: list[int]
) -> None:
    assert run(node, f"r += [create({arguments})[0], both()]") == [result, held]


def test_a_device_is_charged_whatever_context_is_current(node: Node) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    steps = "r += [create(60, 1, 1)[0], both(), start(1), charged_mib(), held_mib(1)]"
    assert run(node, steps) == [0, NONE, 0, 60, 60]


def test_no_context_is_needed(node: Node) -> None:
    steps = "cuda.cuCtxSetCurrent(None); e, h = create(60); r += [e, create(60)[0], release(h), create(60)[0]]"
    assert run(node, steps) == [0, 2, 0, 0]


def test_memory_of_another_process_is_its_exporters(node: Node) -> None:
    steps = (
        "_, h = create(60); fd = export(h); read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    start(); k = take_in(fd); a = reserve(60)\n"
        "    there = [map_at(a, 60, k), charged_mib(), create(60)[0], create(20)[0], release(k), unmap(a, 60),\n"
        "             charged_mib()]\n"
        "    os.write(write, json.dumps(there).encode()); os._exit(0)\n"
        "os.wait(); settled(60)\n"
        "r += [json.loads(os.read(read, 1000)), charged_mib(), release(h), both()]"
    )
    there = [0, 60, 2, 0, 0, 0, 80]
    assert run(node, steps) == [there, 60, 0, NONE]


def test_what_an_exporter_held_is_not_charged_after_it_is_gone(node: Node) -> None:
    steps = (
        "import signal, socket\n"
        "ours, theirs = socket.socketpair()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    start(); _, h = create(60); socket.send_fds(theirs, [b'x'], [export(h)]); signal.pause()\n"
        "_, fds, _, _ = socket.recv_fds(ours, 1, 1)\n"
        "k = take_in(fds[0]); r += [charged_mib()]\n"
        "os.kill(child, signal.SIGKILL); os.wait(); settled(0)\n"
        "r += [charged_mib(), release(k), charged_mib()]"
    )
    assert run(node, steps) == [60, 0, 0, 0]


def test_what_its_exporter_lets_go_of_is_the_importers(node: Node) -> None:
    """At the latest when it imports the next; what is said to be used is never more than the limit."""
    steps = (
        "import socket\n"
        "ours, theirs = socket.socketpair(); said, says = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ours.close(); start(); kept = []\n"
        "    while fds := socket.recv_fds(theirs, 1, 1)[1]:\n"
        "        kept.append(take_in(fds[0])); os.close(fds[0]); theirs.send(b'x')\n"
        "    settled(100, 5); before = both()\n"
        "    for one in kept: release(one)\n"
        "    settled(0, 5); os.write(says, json.dumps([before, both()]).encode()); os._exit(0)\n"
        "theirs.close()\n"
        "for _ in range(5):\n"
        "    e, h = create(60); r.append(e)\n"
        "    if e: break\n"
        "    fd = export(h); socket.send_fds(ours, [b'x'], [fd]); ours.recv(1); os.close(fd); release(h)\n"
        "r += [held_mib(), charged_mib()]\n"
        "ours.close(); r.append(json.loads(os.read(said, 99))); os.wait(); settled(0, 5); r += [both(), create(60)[0]]"
    )
    assert run(node, steps) == [0, 0, 2, 120, 60, [[100, 120], NONE], NONE, 0]


def test_what_several_import_is_charged_once_and_given_back_with_the_last(node: Node) -> None:
    steps = (
        "ready, told = os.pipe(); go, going = os.pipe()\n"
        "_, h = create(60); fd = export(h); children = []\n"
        "for _ in range(3):\n"
        "    children.append(os.fork())\n"
        "    if children[-1] == 0:\n"
        "        start(); k = take_in(fd); charged_mib(); os.write(told, b'x'); os.read(go, 1); release(k); os._exit(0)\n"
        "for _ in children: os.read(ready, 1)\n"
        "r += [both(), create(60)[0], release(h), held_mib()]\n"
        "for child in children: r.append(held_mib()); os.write(going, b'x'); os.wait()\n"
        "settled(0, 5); r += [both(), create(60)[0]]"
    )
    assert run(node, steps) == [ALL, 2, 0, 60, 60, 60, 60, NONE, 0]


def test_what_comes_back_to_its_own_process_is_charged_once(node: Node) -> None:
    steps = "_, h = create(60); k = take_in(export(h)); r += [both(), release(k), both(), release(h), both()]"
    assert run(node, steps) == [ALL, 0, ALL, 0, NONE]


BIND = "_, h = create(60); m = multicast(60)\n"


@pytest.mark.parametrize(
    "bind",
    [
        pytest.param("cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), u64(60 * MIB), u64(0))", id="by handle"),
        pytest.param(
            "cuda.cuMulticastBindMem_v2(u64(m), 0, u64(0), u64(h), u64(0), u64(60 * MIB), u64(0))",
            id="by handle and device",
        ),
        pytest.param("cuda.cuMulticastBindAddr(u64(m), u64(0), u64(a), u64(60 * MIB), u64(0))", id="by address"),
        pytest.param(
            "cuda.cuMulticastBindAddr_v2(u64(m), 0, u64(0), u64(a), u64(60 * MIB), u64(0))",
            id="by address and device",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["unbound", "object released"])
def test_what_is_bound_to_a_multicast_object_stays_charged(node: Node, bind: str, end: str) -> None:
    ending = {
        "unbound": "cuda.cuMulticastUnbind(u64(m), 0, u64(0), u64(60 * MIB))",
        "object released": "release(m)",
    }[end]
    steps = (
        f"{BIND}a = reserve(60); map_at(a, 60, h)\n"
        f"r += [{bind}, both(), unmap(a, 60), release(h), both(), {ending}, both()]"
    )
    assert run(node, steps) == [0, ALL, 0, 0, ALL, 0, NONE]


def test_a_device_that_is_unbound_leaves_the_others_memory_bound(node: Node) -> None:
    node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    steps = (
        "m = multicast(60, devices=2); hs = [create(60, 1, device)[1] for device in (0, 1)]\n"
        "for h in hs: cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), u64(60 * MIB), u64(0)); release(h)\n"
        "def all_of_them(): here = both(); start(1); there = [charged_mib(), held_mib(1)]; start(0); return here + there\n"
        "r += [all_of_them()]\n"
        "for device in (0, 1):\n"
        "    r += [cuda.cuMulticastUnbind(u64(m), device, u64(0), u64(60 * MIB)), all_of_them()]"
    )
    assert run(node, steps) == [ALL + ALL, 0, NONE + ALL, 0, NONE + NONE]


@pytest.mark.parametrize("end", ["unbind(m, 1)", "0"], ids=["unbound", "object released"])
def test_each_process_is_charged_what_it_binds_to_an_object_of_another(
    node: Node, end: str
) -> None:
    """As libraries of collectives do: one process makes the object, and each binds memory of its own GPU."""
    node.sim.add_gpu(gpu=SimGpu(uuid=made_up_uuid(1)))
    steps = (
        "import socket\n"
        "ours, theirs = socket.socketpair(); size = u64(60 * MIB)\n"
        "bind = lambda m, h: cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), size, u64(0))\n"
        "unbind = lambda m, device: cuda.cuMulticastUnbind(u64(m), device, u64(0), size)\n"
        "both_of = lambda device: [charged_mib(), held_mib(device)]\n"
        "if os.fork() == 0:\n"
        "    start(1); fd = socket.recv_fds(theirs, 1, 1)[1][0]; m = take_in(fd); os.close(fd)\n"
        "    _, h = create(60, 1, 1); a, b = reserve(60), reserve(60)\n"
        "    there = [cuda.cuMulticastAddDevice(u64(m), 1), map_at(a, 60, h), bind(m, h), map_at(b, 60, m)]\n"
        "    there += [create(60, 1, 1)[0], unmap(a, 60), release(h), both_of(1), unmap(b, 60), both_of(1)]\n"
        f"    there += [{end}, release(m), both_of(1)]\n"
        "    theirs.send(json.dumps(there).encode()); os._exit(0)\n"
        "start(); m = multicast(60); fd = export(m); socket.send_fds(ours, [b'x'], [fd]); os.close(fd)\n"
        "_, h = create(60); a = reserve(60); r += [bind(m, h), map_at(a, 60, m), json.loads(ours.recv(999))]\n"
        "os.wait(); r += [release(h), both(), unmap(a, 60), unbind(m, 0), release(m), both()]"
    )
    there = [0, 0, 0, 0, 2, 0, 0, ALL, 0, ALL, 0, 0, NONE]
    assert run(node, steps) == [0, 0, there, 0, ALL, 0, 0, 0, NONE]


def test_what_is_not_charged_may_be_bound_and_unbound(node: Node) -> None:
    steps = (
        "m = multicast(60); _, h = create(60, 2)\n"
        "bind = lambda: cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), u64(60 * MIB), u64(0))\n"
        "r += [bind(), cuda.cuMulticastUnbind(u64(m), 0, u64(0), u64(60 * MIB)), bind(), release(h), release(m), both()]"
    )
    assert run(node, steps) == [0, 0, 0, 0, 0, NONE]


def test_a_mapped_multicast_object_keeps_what_is_bound(node: Node) -> None:
    steps = (
        f"{BIND}a = reserve(60)\n"
        "r += [cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), u64(60 * MIB), u64(0)),\n"
        "      map_at(a, 60, m), release(m), release(h), both(), unmap(a, 60), both()]"
    )
    assert run(node, steps) == [0, 0, 0, 0, ALL, 0, NONE]


@pytest.mark.parametrize(
    ("before", "use", "end"),
    [
        pytest.param("a = reserve(60)", "map_at(a, 60, h)", "unmap(a, 60)", id="mapped"),
        pytest.param(
            "m = multicast(60)",
            "cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), u64(60 * MIB), u64(0))",
            "release(m)",
            id="bound",
        ),
    ],
)
@pytest.mark.parametrize("fails", [False, True], ids=["released", "release refused"])
def test_what_is_used_while_it_is_released_stays_charged(
    node: Node, before: str, use: str, end: str, fails: bool
) -> None:
    """It was taken off the books before the driver was asked: 120 MiB were had of 100."""
    refusing = "refused('cuMemRelease')" if fails else "contextlib.nullcontext()"
    steps = (
        f"_, h = create(60); {before}\n"
        "thread = threading.Thread(target=lambda: r.append(release(h)))\n"
        f"with {refusing}:\n"
        "    with held('cuMemRelease'):\n"
        f"        thread.start(); time.sleep(0.3); used = {use}\n"
        "    thread.join()\n"
        "r += [used, both(), create(60)[0]]\n"
        "if r[0]: r[0] = release(h)\n"
        f"r += [{end}, both()]"
    )
    header = "import contextlib, threading, time\n"
    assert run(node, header + steps) == [0, 0, ALL, 2, 0, NONE]


def test_a_handle_is_given_out_anew_while_its_release_returns(node: Node) -> None:
    """It was taken for the one that was being released: what it stands for was not charged."""
    steps = (
        "_, other = create(50); a = reserve(50); map_at(a, 50, other); release(other); _, h = create(40)\n"
        "thread = threading.Thread(target=lambda: r.append(release(h)))\n"
        "with held('cuMemReleased'): thread.start(); time.sleep(0.3); k = retain(a); r += [k == h, unmap(a, 50)]\n"
        "thread.join(); r += [both(), create(60)[0], release(k), both(), create(100)[0]]"
    )
    assert run(node, steps) == [True, 0, 0, [50, 50], 2, 0, NONE, 0]


def test_what_is_bound_while_another_is_being_unbound_stays_charged(node: Node) -> None:
    """It is not what the driver has unbound, though it is there when that is noted."""
    steps = (
        "def bind(mib):\n"
        "    _, h = create(mib); size = u64(mib * MIB)\n"
        "    return cuda.cuMulticastBindMem(u64(m), u64(0), u64(h), u64(0), size, u64(0)), release(h)\n"
        "def unbind(): r.append(cuda.cuMulticastUnbind(u64(m), 0, u64(0), u64(60 * MIB)))\n"
        "m = multicast(60); r += bind(60); thread = threading.Thread(target=unbind)\n"
        "with held('cuMulticastUnbound'): thread.start(); time.sleep(0.3); r += [*bind(40), both()]\n"
        "thread.join(); r += [both(), create(80)[0]]; unbind(); r += [both()]"
    )
    assert run(node, steps) == [0, 0, 0, 0, [100, 40], 0, [40, 40], 2, 0, NONE]


def test_many_small_pieces_grow_and_shrink_like_an_expandable_segment(node: Node) -> None:
    steps = (
        "a = reserve(1000); grown = 0\n"
        "while True:\n"
        "    e, h = create(2)\n"
        "    if e: break\n"
        "    map_at(a + grown * 2 * MIB, 2, h); release(h); grown += 1\n"
        "r += [grown, e, both(), unmap(a, 2 * grown), both()]"
    )
    assert run(node, steps) == [50, 2, [100, 100], 0, NONE]
    assert node.sim.peak_mib(GPU) <= 100


def test_a_forked_child_has_no_handles(node: Node) -> None:
    steps = (
        "_, h = create(60); read, write = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    start(); there = [create(60)[0], create(30)[0]]\n"
        "    os.write(write, json.dumps(there).encode()); os._exit(0)\n"
        "os.wait(); settled(60)\n"
        "r += [json.loads(os.read(read, 1000)), charged_mib(), release(h), charged_mib()]"
    )
    assert run(node, steps) == [[2, 0], 60, 0, 0]
