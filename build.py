#!/usr/bin/env python3
"""Everything one does with this tree, one task each: `python3 build.py TASK`.

Needs Linux, Python 3.11 or newer with its venv module, and a package index that pip can reach (or
its cache). Each task makes what it needs: a private environment in .build/ from the hash-pinned
lock files in requirements/, and the C libraries with zig, which comes as a Python package.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / ".build"
VENV = BUILD / "venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ROOT / "requirements"
ARCH = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine(), platform.machine())
HOOK_DIR = BUILD / "hook" / ARCH
FREE_BYTES_WANTED = 1_500_000_000  # zig unpacks to 411 MB, the test tools to about 300 MB
SHOW_AFTER_S = 2.0
C_STYLE = f"--style=file:{ROOT / 'hook' / '.clang-format'}"
GPU_S, GPU_TESTS_S = 470.0, 10.0  # of `gpu` as a whole; less than that is no time for its tests
MISSING = 3  # exit code of what cannot be done on this machine


def say(text: str) -> None:
    """Tell the person in front of the terminal."""
    print(text, flush=True)


def stop(sentence: str) -> NoReturn:
    """End with one sentence that says what is missing and what to do."""
    sys.exit(f"build.py: {sentence}")


def check_prerequisites() -> None:
    """Refuse early, in words, what would fail later in a traceback."""
    if sys.platform != "linux":
        stop(f"this is {sys.platform}; the agent and its libraries are built on Linux")
    if sys.version_info < (3, 11):  # noqa: UP036 - this is the sentence for those who have less
        stop(f"Python {platform.python_version()} is too old; run me with Python 3.11 or newer")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(
            "this Python has no venv module; install it (Debian and Ubuntu: "
            "`apt-get install python3-venv`) and try again"
        )
    BUILD.mkdir(exist_ok=True)
    free = shutil.disk_usage(BUILD).free
    if free < FREE_BYTES_WANTED and not PYTHON.exists():
        stop(
            f"only {free / 1e9:.1f} GB are free in {BUILD}; the build environment needs "
            f"{FREE_BYTES_WANTED / 1e9:.1f} GB, so free some space and try again"
        )


@contextlib.contextmanager
def one_build_at_a_time() -> "Iterator[None]":
    """Hold .build/lock: two tasks started together must not install over each other."""
    with (BUILD / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build.py prepares this tree; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def quietly(label: str, command: "Sequence[str | Path]", **environment: str) -> None:
    """Run a command whose output matters only when it fails; show that it takes time."""
    log = BUILD / "last-step.log"
    began = shown = time.monotonic()
    with log.open("w") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        while True:
            try:
                code = process.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - shown >= (SHOW_AFTER_S if shown == began else 5.0):
                    shown = time.monotonic()
                    say(f"  {label} ... {shown - began:.0f} s")
    if code:
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-30:]))
        stop(f"{label} failed with exit code {code}; the lines above are the end of {log}")
    if shown != began:
        say(f"  {label}: done in {time.monotonic() - began:.0f} s")


def run(*command: "str | Path", **environment: str) -> int:
    """Run a command that speaks for itself; give its exit code."""
    try:
        return subprocess.run(
            [str(part) for part in command], cwd=ROOT, check=False, env=os.environ | environment
        ).returncode
    except KeyboardInterrupt:
        return 130


def installed() -> "dict[str, str]":
    """By lock file of which .build/venv holds the packages: the digest that the file had."""
    return {p.name.split(".")[2]: p.name.split(".")[3] for p in VENV.glob(".lock.*.*")}


def digests(*locks: str) -> "dict[str, str]":
    """What these lock files of requirements/ are now."""
    return {
        lock: hashlib.sha256((REQUIREMENTS / f"{lock}.lock").read_bytes()).hexdigest()[:16]
        for lock in locks
    }


def complete(*locks: str) -> bool:
    """Whether .build/venv holds what these lock files say, so that nothing has to be fetched."""
    stamps = installed()
    return PYTHON.exists() and all(
        stamps.get(lock) == digest for lock, digest in digests(*locks).items()
    )


def environment(*locks: str) -> None:
    """Make .build/venv hold exactly what these lock files of requirements/ say."""
    with one_build_at_a_time():
        wanted, stamps = digests(*locks), installed()
        if any(stamps.get(lock, digest) != digest for lock, digest in wanted.items()):
            say("a lock file changed: making the environment anew")
            shutil.rmtree(VENV)
            stamps = {}
        complete = VENV / ".complete"  # an interrupted `venv` leaves a python without pip
        if not complete.exists():
            quietly("creating .build/venv", [sys.executable, "-m", "venv", "--clear", VENV])
            complete.touch()
            stamps = {}
        for lock in (lock for lock in locks if lock not in stamps):
            pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--no-input", "--no-deps"]
            pip += ["--disable-pip-version-check", "--require-hashes", "--no-compile"]
            pip += ["--only-binary", ":all:", "-r", REQUIREMENTS / f"{lock}.lock"]
            quietly(f"installing requirements/{lock}.lock", pip)
            (VENV / f".lock.{lock}.{wanted[lock]}").touch()


def hook(arguments: "Sequence[str]" = ()) -> int:
    """Compile hook/ for x86_64 and aarch64: libvgpu.so, and the simulated driver for tests.

    Into .build/hook/ARCHITECTURE. Name one or both architectures to build for these only.
    """
    return compile_hook(tuple(arguments) or ("x86_64", "aarch64"))


def compile_hook(architectures: "Sequence[str]" = (ARCH,)) -> int:
    """Compile hook/, for this machine unless told otherwise."""
    environment("run", "hook")
    sys.path.insert(0, str(ROOT / "hook"))
    import compile as compiler  # type: ignore[import-not-found] # lives in hook/

    with one_build_at_a_time():
        try:
            for arch in architectures:
                compiler.build_all(
                    HOOK_DIR.parent, str(PYTHON), arch, say=lambda text: say(f"  {text}")
                )
        except compiler.CompileError as error:
            stop(str(error))
    return 0


def cuda_symbols(arguments: "Sequence[str]" = ()) -> int:
    """Read the CUDA headers: write the tables of driver functions and our prototypes.

    The headers are fetched from PyPI as requirements/cuda-headers.lock pins them. With a release,
    `build.py cuda-symbols 13.6`, its newest headers are pinned first. What is left for a person to
    decide is printed in sentences; docs/hook.md explains.
    """
    environment("run", "hook", "dev")
    return run(PYTHON, "-m", "hook.driver_symbols.generate", *arguments)


def demo(arguments: "Sequence[str]" = ()) -> int:
    """Run the main job on a simulated node: no root, GPU, kubelet or cluster needed.

    --json prints one JSON object for machines, --keep keeps the node's files.
    """
    compile_hook()
    return run(PYTHON, "agent.py", "demo", *arguments)


def c_files() -> "list[Path]":
    """Our sources in C."""
    tops = (ROOT / "hook", ROOT / "packaging" / "launcher")
    return sorted(path for top in tops for path in top.rglob("*.[ch]"))


def check(_arguments: "Sequence[str]" = ()) -> int:
    """Lint, types, formatting, import contracts, the site's links; part of `test`."""
    environment("run", "hook", "dev", "site")
    tools = VENV / "bin"
    steps: dict[str, list[str | Path]] = {
        "ruff check": [tools / "ruff", "check", "."],
        "ruff format": [tools / "ruff", "format", "--check", "."],
        "clang-format": [tools / "clang-format", C_STYLE, "--dry-run", "-Werror", *c_files()],
        "mypy agent": [tools / "mypy", "-p", "agent"],
        "mypy build.py": [tools / "mypy", "build.py"],
        "mypy packaging": [tools / "mypy", "-p", "bundling"],
        "import contracts": [tools / "lint-imports"],
        **site_steps(),
    }
    began = time.monotonic()
    for label, command in steps.items():
        quietly(label, command)
    say(f"check: {len(steps)} checks passed in {time.monotonic() - began:.0f} s")
    return 0


def format(_arguments: "Sequence[str]" = ()) -> int:  # noqa: A001 - the task's name
    """Rewrite Python and C in the house's format."""
    environment("run", "hook", "dev")
    tools = VENV / "bin"
    quietly("ruff", [tools / "ruff", "check", "--fix-only", "."])
    quietly("ruff format", [tools / "ruff", "format", "."])
    quietly("clang-format", [tools / "clang-format", C_STYLE, "-i", *c_files()])
    return 0


def test(arguments: "Sequence[str]") -> int:
    """Check everything and run all tests; --cluster, --bundle: others instead.

    --cluster: the cases of tests/cluster on a real kubelet. --bundle: make the release, then test
    that. Further arguments go to pytest, e.g. `build.py test tests/unit -k claims`.
    """
    arguments = list(arguments)
    for tier, run_tier in (("--cluster", test_cluster), ("--bundle", test_bundle)):
        if tier in arguments:
            arguments.remove(tier)
            return run_tier(arguments)
    compile_hook()
    environment("run", "hook", "dev")
    if not arguments:
        check()
    chosen = arguments or ["-n", "2", "--dist", "loadfile"]
    return run(
        PYTHON,
        "-m",
        "pytest",
        "-m",
        "not cluster and not gpu and not bundle and not faults",
        *chosen,
    )


def test_cluster(arguments: "Sequence[str]") -> int:
    """Run tests/cluster on a real kubelet and API server, or on those that are given."""
    compile_hook()
    if not os.environ.get("VGPU_TEST_KUBECONFIG"):
        cluster_peers()
    environment("run", "hook", "dev")
    chosen = arguments or ["-n", "2", "--dist", "loadgroup"]  # a node each
    return run(PYTHON, "-m", "pytest", "-m", "cluster", "tests/cluster", *chosen)


def test_bundle(arguments: "Sequence[str]") -> int:
    """Make the release and run tests/bundle on it."""
    code = dist()
    if code:
        return code
    environment("run", "hook", "dev", "dist", "bundle")
    chosen = arguments or ["-n", "2", "--dist", "loadfile"]
    code = run(PYTHON, "-m", "pytest", "-m", "bundle", "tests/bundle", *chosen)
    if code or arguments:
        return code
    [single_file] = (ROOT / "dist").glob(f"vgpu-agent-*-linux-{ARCH}")
    say("the main job, done by the release")
    main_job = [
        f"tests/e2e/test_{name}.py" for name in ("main_job", "demo", "local_api", "unread_log")
    ]
    return run(PYTHON, "-m", "pytest", *main_job, *chosen, VGPU_TEST_AGENT=str(single_file))


def cluster_peers(_arguments: "Sequence[str]" = ()) -> int:
    """Build a real kubelet and kube-apiserver once, into a cache outside the tree (3 min)."""
    environment("run", "hook", "dev")
    return run(PYTHON, "-m", "tests.peers.build_peers")


def gpu(arguments: "Sequence[str]" = ()) -> int:
    """Check and measure on this machine's NVIDIA GPU; writes docs/results/gpu.md, .json and plots.

    In less than 8 minutes. --only CHECK, --python PYTHON (one that has PyTorch), --budget SECONDS,
    --page FILE. CUDA_VISIBLE_DEVICES chooses the GPU. Where the library is built nothing is
    fetched. Without arguments, and with the test tools in .build, the tests marked `gpu` follow.
    Exit code 3: something is missing, told in one sentence; 0 instead with --skip-without-gpu.
    --plots [FILE] only draws what an earlier run has found.
    """
    if "--plots" in arguments:
        environment("run", "dev", "scale")
        files = [word for word in arguments if word != "--plots"] or ["docs/results/gpu.json"]
        return run(PYTHON, "tests/gpu/plots.py", *files)
    began = time.monotonic()
    tools = complete("run", "hook", "dev")
    if tools or not (HOOK_DIR / "libvgpu.so").is_file():
        check_prerequisites()
        compile_hook()
    else:
        say(f"using {HOOK_DIR / 'libvgpu.so'} as it is, because what compiles it is not here")
    code = run(sys.executable, "tests/gpu/suite.py", *arguments)
    if arguments or code == MISSING:
        return code
    left_s = GPU_S - (time.monotonic() - began)
    if not tools or left_s < GPU_TESTS_S:
        why = "there was no time" if tools else "`build.py test -m gpu tests/gpu` fetches tools"
        say(f"left out: the tests marked gpu; {why}")
        return code
    limit = ("--session-timeout", str(int(left_s)))
    return run(PYTHON, "-m", "pytest", "-m", "gpu", "-v", *limit, "tests/gpu") or code


def bench(arguments: "Sequence[str]" = ()) -> int:
    """Measure agent and hook, print the table; --json FILE writes the rows, --only AREA selects.

    Without both it writes docs/results/bench.json and install.json. Exit code 1: a negative control
    passed the check that it must fail.

    Areas: start, allocate, memory, large, wake, idle, scrape, region, feedback, artifact, install,
    hook, columns, share, plugin. FILE.md is written beside FILE.json. --peer-hook LIBRARY runs the
    hook's programs with another library, too; --peer-plugin PROGRAM (and --peer-plugin-words
    WORDS) measures another device plugin beside ours.
    """
    compile_hook()
    environment("run", "hook", "dev")
    if {"artifact", "install"} & {*arguments} or "--only" not in arguments:
        code = dist()
        if code:
            return code
    return run(PYTHON, "tests/bench/run.py", *arguments)


def shares(arguments: "Sequence[str]" = ()) -> int:
    """How exactly containers get their shares of GPU time, in a thousand cases (15 minutes).

    Prints each; without WORD it writes docs/results/shares.md. Exit code 1: one was not within what
    is allowed. WORD: only those whose name has it. --seed N: of what is drawn at random.
    --page FILE: writes the page there.
    """
    compile_hook()
    environment("run", "hook", "dev")
    return run(PYTHON, "tests/bench/shares.py", *arguments)


def soak(arguments: "Sequence[str]" = ()) -> int:
    """Thirty days of a node in minutes: does anything grow? Writes docs/results/soak.md.

    --days N, --seed N.
    """
    environment("run", "dev")
    return run(PYTHON, "tests/soak/run.py", *arguments)


def scale(arguments: "Sequence[str]" = ()) -> int:
    """Count what 5,000 agents ask of an API server (half an hour); writes docs/results/scale.md.

    --nodes N, --processes N, --seed N. --rest SECONDS: how long a real agent is held against them.
    --page FILE writes there instead, JSON and plots beside it; --again: page and plots of the JSON.
    """
    compile_hook()
    environment("run", "hook", "dev", "scale")
    return run(PYTHON, "tests/scale/run.py", *arguments)


def site_steps() -> "dict[str, list[str | Path]]":
    """What makes the site, in this order."""
    script, settings = "packaging/site/gather.py", "packaging/site/mkdocs.yml"
    return {
        "gather pages": [PYTHON, script, ROOT, BUILD / "site" / "pages"],
        "mkdocs": [PYTHON, "-m", "mkdocs", "build", "--strict", "--config-file", settings],
    }


def site(_arguments: "Sequence[str]" = ()) -> int:
    """Make the documentation as a site: .build/site/html/index.html; a broken link fails it."""
    environment("run", "dev", "site")
    for label, command in site_steps().items():
        quietly(label, command, NO_MKDOCS_2_WARNING="true")
    say(f"wrote {BUILD / 'site' / 'html' / 'index.html'}")
    return 0


def faults(arguments: "Sequence[str]" = ()) -> int:
    """Try every fault of the matrix, for about half an hour; writes docs/results/faults.md.

    --runs N: so often. --only WORDS: faults with these words. --page FILE writes there instead, and
    FILE.json beside it; --again: the page of that JSON, with today's words. Exit code 1: something
    failed.
    """
    compile_hook()
    environment("run", "hook", "dev")
    return run(PYTHON, "tests/faults/run.py", *arguments)


def fuzz(arguments: "Sequence[str]" = ()) -> int:
    """Look for inputs that a parser does not bear, in Python and C, 20 s for each.

    --seconds N: so long each. --only WORD: targets with this word. --keep: add what reached
    something new to tests/fuzz/corpus, which the tests replay. Exit code 1: something was found.
    """
    if ARCH != "x86_64" or sys.version_info >= (3, 14):
        say(
            "atheris, which brings libFuzzer, has wheels for x86_64 and Python 3.11 to 3.13 only; "
            "what is kept is replayed everywhere by `python3 build.py test tests/fuzz`"
        )
        return MISSING
    environment("run", "hook", "dev", "fuzz")
    return run(PYTHON, "tests/fuzz/run.py", *arguments)


def audit(arguments: "Sequence[str]" = ()) -> int:
    """Look at pins, licences and known vulnerabilities; writes docs/results/security.md.

    --advisories FILE matches an export of OSV (PyPI/all.zip) with the pins and asks no service;
    --offline asks none. --page FILE writes there; --quick leaves overlays and bill out. Without a
    network it says that nothing is known of vulnerabilities, and fails only for what it has seen.
    """
    environment("run", "hook", "dev", "dist", "site", "audit")
    return run(PYTHON, "tests/security/audit.py", *arguments)


def dist(arguments: "Sequence[str]" = ()) -> int:
    """Make the release in dist/: one executable, tarball, image; sums, SBOM, provenance.

    --sign KEY signs SHA256SUMS with an SSH key, into SHA256SUMS.sig.
    """
    compile_hook()
    environment("run", "hook", "dev", "dist")
    command = (PYTHON, "-m", "bundling", ROOT / "dist", HOOK_DIR, BUILD / "dist")
    return run(*command, *arguments, PYTHONPATH=str(ROOT / "packaging"))


def release_check(_arguments: "Sequence[str]" = ()) -> int:
    """Tell what is missing for a release of this commit; exit code 1 if there is any."""
    environment("run", "hook", "dev")
    return run(
        *(PYTHON, "-m", "bundling.release_check", ROOT / "dist"),
        PYTHONPATH=str(ROOT / "packaging"),
    )


def proto(_arguments: "Sequence[str]" = ()) -> int:
    """Generate agent/wire/*_pb2.py from the .proto files beside them."""
    environment("run", "hook", "dev")
    sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "agent/wire").glob("*.proto"))
    quietly(
        "protoc",
        [PYTHON, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.", *sources],
    )
    return 0


def lock(_arguments: "Sequence[str]" = ()) -> int:
    """Resolve requirements/*.in anew and write the hash-pinned lock files."""
    environment("run", "hook", "dev")
    constraints = {"dev": "run", "dist": "dev", "frozen": "run", "bundle": "dev", "site": "dev"}
    constraints["scale"] = constraints["audit"] = "dev"
    first = ("run", "hook", "dev", "peers")  # which others go by
    for name in (*first, "dist", "frozen", "bundle", "site", "fuzz", "scale", "audit"):
        known = constraints.get(name)
        constraint = ["-c", f"requirements/{known}.lock"] if known else []
        python = "3.14" if name == "frozen" else "3.11"  # the one in packaging/runtime
        resolve: list[str | Path] = [VENV / "bin" / "uv", "pip", "compile", "--upgrade"]
        resolve += ["--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"]
        resolve += ["--python-version", python, "--python-platform", f"{ARCH}-manylinux2014"]
        resolve += [*constraint, f"requirements/{name}.in", "-o", f"requirements/{name}.lock"]
        quietly(f"locking requirements/{name}.in", resolve)
    return 0


def clean(_arguments: "Sequence[str]" = ()) -> int:
    """Remove everything that the tasks made in this tree: .build, dist and caches."""
    doomed = [BUILD, ROOT / "dist", *ROOT.glob(".*_cache"), ROOT / ".hypothesis"]
    doomed += [
        path for top in ("agent", "tests", "hook") for path in (ROOT / top).rglob("__pycache__")
    ]
    for path in doomed:
        if path.exists():
            shutil.rmtree(path)
    return 0


TASKS: "dict[str, Callable[[Sequence[str]], int]]" = {
    "demo": demo, "test": test, "check": check, "format": format, "hook": hook, "dist": dist,
    "release-check": release_check,
    "cuda-symbols": cuda_symbols,
    "audit": audit, "bench": bench, "faults": faults, "fuzz": fuzz, "soak": soak, "site": site,
    "gpu": gpu, "scale": scale, "shares": shares,
    "cluster-peers": cluster_peers, "proto": proto, "lock": lock, "clean": clean,
}  # fmt: skip

TAKE_ARGUMENTS = (
    "demo",
    "test",
    "hook",
    "cuda-symbols",
    "gpu",
    "audit",
    "bench",
    "faults",
    "fuzz",
    "soak",
    "scale",
    "shares",
    "dist",
)


def main(argv: "Sequence[str]") -> int:
    """Run one task; its own arguments follow its name."""
    summary = "\n".join(
        f"  {name:<14} {(task.__doc__ or '').splitlines()[0]}" for name, task in TASKS.items()
    )
    parser = argparse.ArgumentParser(
        prog="build.py",
        usage="python3 build.py TASK [ARGUMENTS OF THE TASK]",
        description=__doc__,
        epilog=f"tasks:\n{summary}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=TASKS, metavar="TASK", help="one of those below")
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    chosen = parser.parse_args(argv[:1])
    task, rest = TASKS[chosen.task], list(argv[1:])
    if "--help" in rest:
        say(textwrap.dedent("    " + (task.__doc__ or "")).strip())
        return 0
    if rest and chosen.task not in TAKE_ARGUMENTS:
        stop(f"the task {chosen.task} takes no arguments, but was given {' '.join(rest)}")
    try:
        if chosen.task not in ("clean", "gpu"):  # a machine with a GPU may have next to nothing
            check_prerequisites()
        return task(rest)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        stop(
            f"{error.filename or ROOT}: {error.strerror or error}; make room, or the tree writable"
        )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
