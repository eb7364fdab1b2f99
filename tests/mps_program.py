"""Plays `nvidia-cuda-mps-control` of the drivers 470 to 550, as far as the agent talks to it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A daemon is the file `control`; its clients, and what else it is like, are files above. What it is
# told stands in `told`. As the real one it exits with 0 whatever it is told, keeps a memory limit
# of a number alone, and tells it in whole GiB where there is one.
PROGRAM = r"""#!/bin/sh
told="$CUDA_MPS_LOG_DIRECTORY/told"
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -d ]; then
  [ ${#CUDA_MPS_PIPE_DIRECTORY} -gt 87 ] && exit 1
  [ -e ../refuses ] && { echo "it does not start" >&2; exit 1; }
  [ -e control ] && { echo "An instance of this daemon is already running" >&2; exit 1; }
  [ -e ../silent ] && exit 100
  env > "$CUDA_MPS_LOG_DIRECTORY/environ"
  rm -f limit.* percent; : > control; echo "started $CUDA_VISIBLE_DEVICES" >> "$told"; exit 0
fi
[ -e control ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
while read -r name one two; do
  case "$name" in set_*|quit) echo $name $one $two >> "$told" ;; esac
  case "$name$(cat ../old 2>/dev/null)" in
    get_server_list*) cat ../servers 2>/dev/null ;;
    get_client_list*) cat ../clients 2>/dev/null ;;
    get_default_active_thread_percentage*) cat percent 2>/dev/null || echo 100.0 ;;
    set_default_active_thread_percentage*) echo "$one.0" | tee percent ;;
    get_default_device_pinned_mem_limit) cat "limit.$one" 2>/dev/null ;;
    set_default_device_pinned_mem_limit)
      mib=${two%M}
      case "$one" in
        *[!0-9]*) ;;
        *) [ "$mib" -ge 1024 ] && two="$((mib / 1024))G"; echo "$two" > "limit.$one" ;;
      esac ;;
    quit*) rm control ;;
    *) echo "Unknown command \"$name\"" ;;
  esac
done
exit 0
"""


def write(folder: Path) -> None:
    """Put it where a PATH finds it."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(PROGRAM)
    program.chmod(0o755)


@contextmanager
def short_folder() -> Iterator[Path]:
    """Where paths are short enough for the daemon's sockets, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        yield Path(folder)


@contextmanager
def place() -> Iterator[tuple[Path, Path]]:
    """The folder of the program, and the one for the daemons of a node."""
    with short_folder() as folder:
        programs, root = folder / "bin", folder / "mps"
        write(programs)
        root.mkdir()
        (root / "shm").symlink_to("/dev/shm")
        yield programs, root
