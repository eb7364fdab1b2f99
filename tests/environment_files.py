"""Environment files, and what systemd reads in them; `tests/bundle` asks systemd itself."""

import pytest

FILES = [
    pytest.param("A=1\nB=2", {"A": "1", "B": "2"}, id="plain"),
    pytest.param("A=1\nA=2\n", {"A": "2"}, id="the last counts"),
    pytest.param("# A=1\n; A=2\n  #A=3\n", {}, id="comments"),
    pytest.param("A='1 #2'\nB=\"3 ;4\"\n", {"A": "1 #2", "B": "3 ;4"}, id="quotes"),
    pytest.param("A=1 #2\n", {"A": "1 #2"}, id="no comment behind a value"),
    pytest.param("A = 1 \n", {"A": "1"}, id="space around"),
    pytest.param("A=1 \\\n  2\n", {"A": "1   2"}, id="joined lines"),
    pytest.param('A="1\n2"\nB=3\n', {"A": "1\n2", "B": "3"}, id="quotes over lines"),
    pytest.param("A=it's\n", {"A": "it's"}, id="a quote in the middle"),
    pytest.param("A='a''b'c\n", {"A": "abc"}, id="pieces"),
    pytest.param('A="\\"\\$\\n"\n', {"A": '"$\\n'}, id="escaped in quotes"),
    pytest.param("A=\\'x\n", {"A": "'x"}, id="escaped outside"),
    pytest.param("A=$HOME ${B}\n", {"A": "$HOME ${B}"}, id="no expansion"),
    pytest.param("A=\nB\n=C\nexport D=1\nE=5\n", {"A": "", "E": "5"}, id="what is no assignment"),
    pytest.param("A=1\r\n", {"A": "1"}, id="a file from Windows"),
]
