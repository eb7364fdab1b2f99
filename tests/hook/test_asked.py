"""Of launches that are being measured the driver is asked about few: of each stream, the first not over.

Up to 1008 are queued, and are looked at every millisecond. `STREAM:BEGIN_CALL:END_CALL:BEGINS:ENDS`, times in
ms from the first look; e is asked about the end of a launch, b about its beginning.
"""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled


@pytest.mark.parametrize(
    ("launches", "asked"),
    [
        pytest.param("", [""], id="nothing"),
        pytest.param("1:0:2:5:6", ["e0 b0"], id="one that has not begun"),
        pytest.param("1:0:2:-1:1 1:3:5:1:2 1:6:8:2:3", ["e0 b0"], id="the first of a stream runs"),
        pytest.param(
            "1:0:2:-3:-2 1:3:5:-2:-1 1:6:8:-1:1 1:9:11:1:2", ["e0 e1 e2 b2"], id="two are over"
        ),
        pytest.param("1:0:2:-2:-1 1:3:5:-1:0", ["e0 e1"], id="all are over"),
        pytest.param(
            "1:0:2:-1:1 2:3:5:-1:1 1:6:8:1:2 2:9:11:1:2", ["e0 e1 b0 b1"], id="two streams in turn"
        ),
        pytest.param("1:0:2:5:6 72057594037927937:3:5:5:6", ["e0 e1 b0 b1"], id="of two contexts"),
        pytest.param("1:6:8:1:2:0 1:3:5:0:1:1 1:0:2:-1:0:2", ["e2 e1 b1"], id="in order of calls"),
        pytest.param(
            "1:0:5:-1:1 1:1:4:-1:-1 1:6:8:2:3", ["e1 e0 b0"], id="one ends within another"
        ),
        pytest.param(
            "1:0:4:-1:1 1:1:5:-1:2 1:6:8:2:3", ["e0 e1 b0 b1"], id="one begins within another"
        ),
        pytest.param(
            "2:0:2:5:6 36:3:5:5:6 36:6:8:6:7", ["e0 e1 e2 b0 b1 b2"], id="two streams in one place"
        ),
        pytest.param(
            "1:0:2:-1:-2000 1:3:5:1:2",
            ["e0 e1 b1"],
            id="the driver refuses to say: not asked again",
        ),
        pytest.param(
            "1:0:5:-1:1 1:1:4:-3:-2", ["e1 e0 b0"], id="noted in another order than recorded"
        ),
        pytest.param(
            "1:0:4:-1:1 1:1:5:-3:-2", ["e0 e1 b0"], id="or noted late: over, though behind one"
        ),
        pytest.param(
            " ".join(f"1:{3 * i}:{3 * i + 2}:-3:-2" for i in range(300)) + " then",
            [
                " ".join(f"e{i}" for i in range(256)) + " b256",
                " ".join(f"e{i}" for i in range(256, 300)),
            ],
            id="no more at once than is known what ran beside them",
        ),
        pytest.param(
            "1:0:2:-1:1000 1:3:5:-3:-2" + " then" * 7,
            ["e0 b0", *["e0"] * 6, "e0 e1"],
            id="all are asked about now and then: a stream may be named anew",
        ),
        pytest.param(
            "1:0:2:-1:.5 1:3:5:.5:2 then 1:6:8:2:3", ["e0 b0", "e0 e1 b1"], id="one comes later"
        ),
        pytest.param(
            "1:0:2:-1:0 1:3:5:0:3 then 1:6:8:3:4:0",
            ["e0 e1 b1", "e1"],
            id="in the place of one that is over",
        ),
        pytest.param(
            "1:0:2:-1:0 1:3:5:0:1 then 1:6:8:1:4:0 then",
            ["e0 e1 b1", "e1 e2 b2", "e2"],
            id="which is asked about in its turn",
        ),
    ],
)
def test_what_the_driver_is_asked_about(launches: str, asked: list[str]) -> None:
    program = compiled("asked.c", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'tests/hook'}")
    ran = subprocess.run([program, *launches.split()], capture_output=True, text=True, check=True)
    assert [line.strip() for line in ran.stdout.split("\n")[:-1]] == asked
