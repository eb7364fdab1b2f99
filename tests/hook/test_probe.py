"""What the hook makes of the driver's answers where a driver of our own must give them at the right moment."""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled

HOOK = f"-I{ROOT / 'hook'}"
DRIVER = f"-I{ROOT / 'tests/hook'}"  # what tests give it
SLEEP = str(ROOT / "hook" / "monotonic.c")


@pytest.mark.parametrize(
    ("put_aside_us", "first_us", "ppm"),
    [
        pytest.param(0, 0, 0, id="nothing in the way"),
        pytest.param(10_000, 0, 0, id="put aside while a probe is sent"),
        pytest.param(100, 0, 0, id="put aside for a moment"),
        pytest.param(0, 3000, 0, id="the GPU was others' when the first was sent"),
        pytest.param(0, 0, 100, id="the GPU's clock is fast"),
        pytest.param(0, 0, -100, id="the GPU's clock is slow"),
        pytest.param(10_000, 3000, 0, id="both"),
    ],
)
def test_when_things_happen_on_the_gpu_is_told(put_aside_us: int, first_us: int, ppm: int) -> None:
    """Each probe's time is believed only as far as the call that sent it was short."""
    probe = compiled("probe.c", HOOK, DRIVER)
    ran = subprocess.run(
        [probe, str(put_aside_us), str(first_us), str(ppm)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 <= int(ran.stdout) <= 20  # us


@pytest.mark.parametrize(
    ("ppm", "idle_ms", "every"),
    [
        pytest.param(20, 10_000, 0, id="ten seconds, the GPU's clock is fast"),
        pytest.param(-20, 10_000, 0, id="ten seconds, the GPU's clock is slow"),
        pytest.param(0, 18_000_137, 0, id="five hours: elapsed times are whole milliseconds"),
        pytest.param(5, 1_000_000_000, 0, id="eleven days: elapsed times are believed no more"),
        pytest.param(50, 300, 5, id="bursts, 0.3 s apart, the GPU's clock is fast"),
        pytest.param(50, 1000, 5, id="bursts, a second apart, the GPU's clock is fast"),
        pytest.param(-50, 300, 5, id="bursts, 0.3 s apart, the GPU's clock is slow"),
    ],
)
def test_when_things_happen_on_the_gpu_is_told_after_nobody_looked(
    ppm: int, idle_ms: int, every: int
) -> None:
    ran = subprocess.run(
        [compiled("probe.c", HOOK, DRIVER), "0", "0", str(ppm), str(idle_ms), str(every)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 <= int(ran.stdout) <= 20  # us


@pytest.mark.parametrize(
    "asked", [[], ["ended"], ["waited"]], ids=["later", "as each is over", "by who waits for that"]
)
@pytest.mark.parametrize("read_us", [0, 100, 300, 500])
def test_what_others_had_is_found_however_long_a_look_takes(read_us: int, asked: list[str]) -> None:
    """The ends of their turns fell between the look and its question: 93 % of it were found with 300 us.

    A launch that ends soon after their turn is judged before the next look: 94 % were found then,
    and 87 by a thread that waits, as the next look does not come at once.
    """
    ran = subprocess.run(
        [compiled("probe_turns.c", HOOK, DRIVER), str(read_us), *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(ran.stdout) == pytest.approx(100, abs=2)


def primaries() -> list[str]:
    """What primaries.c prints, which has a clock that nobody sleeps by."""
    program = compiled("primaries.c", HOOK, DRIVER, "-pthread")
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()


def test_a_context_that_another_thread_makes_anew_has_ended() -> None:
    """Our events were in it; where nobody can tell, they are given up, too."""
    # alone; held by others, whom we did not see; anew; while it was released; and before
    assert primaries()[:5] == ["1", "0", "1", "1", "0"]


def test_a_context_that_another_thread_makes_anew_leaves_nothing_charged() -> None:
    """What was in the one before has ended with it, wherever the new one lies."""
    # bytes that stay charged, and whether it was known: elsewhere; in its place; not made
    assert primaries()[5:11] == ["0", "1", "0", "1", "0", "1"]


def test_a_context_ends_with_nothing_of_another_that_has_its_handle() -> None:
    # ended, then the other as well; refused, then ended with the other
    assert primaries()[11:15] == ["1", "0", "201", "0"]


def test_a_context_that_another_thread_has_made_anew_stays_charged() -> None:
    """That there was none was the driver's answer before."""
    assert primaries()[15] == "100"


def test_what_another_thread_has_loaded_since_a_reset_stays_charged() -> None:
    """Its retains stay, too; the next one is charged what the context costs that is made anew."""
    assert primaries()[16:19] == ["100", "200", "0"]


def test_who_comes_while_the_first_is_made_waits_and_is_not_the_first() -> None:
    """Else the driver might make it for the second, and the first would measure nothing."""
    assert primaries()[19:] == ["0", "1"]


@pytest.mark.parametrize(
    ("way", "expected_ns", "known_ns"),
    [
        pytest.param("together", 11_000, 11_000, id="beside each other, as it was"),
        pytest.param("together", 3000, 11_000, id="beside each other, longer than it was"),
        pytest.param("apart", 1000, 11_000, id="far apart, longer than it was"),
        pytest.param("apart", 20_000, 20_000, id="far apart: as it was, for all that is known"),
        pytest.param("apart", 5_000_000, 350_000, id="far apart, shorter than it was"),
        pytest.param("late", 11_000, 11_000, id="one comes long after the others"),
        pytest.param("turns", 2000, 11_000, id="one stream after the other"),
    ],
)
def test_what_a_sweep_tells_of_launches(way: str, expected_ns: int, known_ns: int) -> None:
    """The program of the benchmark: 360 launches of 2 to 20 us on 32 streams, again and again."""
    source = (ROOT / "tests/bench/sweep_cost.c").read_text()
    ran = subprocess.run(
        [compiled(source, HOOK, DRIVER, "-O2"), way, str(expected_ns)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(ran.stdout.split()[1]) == pytest.approx(known_ns, rel=0.1)


def test_who_looked_at_the_clock_first_is_not_ages_ahead() -> None:
    """Of two threads one may come second to what the other has noted at a later time."""
    ran = subprocess.run(
        [compiled("clocks.c", HOOK, SLEEP, "-pthread")], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["1"] * 4  # the block holds; nothing is measured by itself
