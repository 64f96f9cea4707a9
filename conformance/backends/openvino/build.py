"""Builds the C++ operation against the installed OpenVINO and keeps it in the user's cache.

Run as a module it builds (``python -m conformance.backends.openvino.build``), or builds and runs the kernel's own test
under sanitizers (``--sanitize address undefined thread``).
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import openvino
from platformdirs import user_cache_path

from conformance.backends.protocol import Unsupported
from conformance.errors import BackendError

FEATURE = "openvino-cpu-op"
SOURCES = Path(__file__).parent / "native"
CACHE_VARIABLE = "QSA_CONFORMANCE_NATIVE_CACHE"
LIBRARY = "qsa_extension.so"  # a CMake module has this suffix on macOS, too
RECORD = "key.json"  # beside the library: what it was built from, and its checksum
SANITIZERS = ("address", "undefined", "thread")
KERNEL_TESTS = ("kernel_test", "attention_test")
SHOWN_LINES = 40

Report = Callable[[str], None]


@dataclass(frozen=True)
class Toolchain:
    """The programs of a build; `identity` is what the compiler says of itself."""

    compiler: str
    identity: str
    cmake: str
    ninja: str = ""


@dataclass(frozen=True)
class Key:
    """What a built library depends on; a change of any part means another build."""

    openvino: str
    compiler: str
    machine: str
    cpu: str
    sources: str

    @property
    def name(self) -> str:
        """A folder name: readable in its first part, unambiguous in its second."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"openvino-{self.openvino.split('-')[0]}-{digest[:16]}"


def build_native(report: Report | None = None, *, sources: Path = SOURCES, cache: Path | None = None) -> Path:
    """The library of the C++ operation, built when the cache has none for this OpenVINO, compiler, CPU and source.

    `report` gets one sentence before a build. Raises `Unsupported` without a compiler or CMake, `BackendError` with
    the compiler's own words when the build fails. Processes that build at the same time wait for each other; a
    library appears in the cache complete or not at all. One that is damaged, or cannot be loaded, is built again.
    """
    tools = find_toolchain()
    key = key_of(tools, sources)
    root = cache or cache_folder()
    library = root / key.name / LIBRARY
    if not fault_of(library, key):
        return library
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{key.name}.lock"):
            fault = fault_of(library, key)
            if fault:
                if report is not None:
                    why = f"; the one in the cache {fault}" if library.parent.exists() else ""
                    report(f"building the C++ operation with {tools.identity}, once for this OpenVINO and CPU{why}")
                _build_into(library, key, tools, sources)
                fault = fault_of(library, key)
                if fault:
                    raise BackendError(f"the C++ operation was built, and {fault}: {library}")
    except OSError as error:
        raise BackendError(f"the C++ operation cannot be kept in {root}: {error}; set {CACHE_VARIABLE}") from error
    return library


def fault_of(library: Path, key: Key) -> str:
    """What is wrong with a library in the cache, as the end of a sentence; nothing when it can be used."""
    try:
        record = json.loads((library.parent / RECORD).read_text(encoding="utf-8"))
        checksum = hashlib.sha256(library.read_bytes()).hexdigest()
    except (OSError, ValueError) as error:
        return f"cannot be read ({type(error).__name__})"
    if not isinstance(record, dict) or {name: record.get(name) for name in asdict(key)} != asdict(key):
        return "was built from something else"
    if record.get("checksum") != checksum:
        return "does not have its checksum"
    try:  # only one that has its checksum: a truncated one may end the process that maps it
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"cannot be loaded ({error})"
    return ""


def find_toolchain() -> Toolchain:
    """Compiler and CMake of this machine; CXX names another compiler. Raises `Unsupported` when one is missing."""
    if sys.platform == "win32":
        raise Unsupported(FEATURE, "the C++ operation is built on Linux and macOS only")
    wanted = os.environ.get("CXX")
    compiler = (
        shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    )
    if compiler is None:
        where = f"CXX names '{wanted}', which is not there" if wanted else "neither c++, g++ nor clang++ is there"
        raise Unsupported(FEATURE, f"no C++ compiler: {where}; install one, or set CXX")
    cmake = _program("cmake")
    if cmake is None:
        raise Unsupported(FEATURE, "no CMake to build the C++ operation with; pip install 'qsa-conformance[native]'")
    ninja = _program("ninja")
    if ninja is None and shutil.which("make") is None:
        raise Unsupported(FEATURE, "neither ninja nor make is there; pip install 'qsa-conformance[native]'")
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return Toolchain(compiler, said.partition("\n")[0].strip() or compiler, cmake, ninja or "")


def _program(name: str) -> str | None:
    """A program beside the running Python, where pip puts it, or on the path."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def key_of(tools: Toolchain, sources: Path = SOURCES) -> Key:
    """The key under which the library of these sources is kept on this machine."""
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.rglob("*") if path.is_file() and "tests" not in path.parts):
        digest.update(f"{path.relative_to(sources)}\0".encode() + path.read_bytes() + b"\0")
    return Key(
        openvino.get_version(), f"{tools.compiler}: {tools.identity}", platform.machine(), _cpu(), digest.hexdigest()
    )


def _cpu() -> str:
    """The instruction sets of the CPU where the system lists them, else its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return " ".join(sorted(flags.partition(":")[2].split()))


def cache_folder() -> Path:
    """Where libraries are kept: below the user's cache directory, or where QSA_CONFORMANCE_NATIVE_CACHE says."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else user_cache_path("qsa-conformance") / "native"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a lock that the system gives back when the process dies."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(library: Path, key: Key, tools: Toolchain, sources: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="building-", dir=library.parent.parent) as folder:
        build, made = Path(folder, "build"), Path(folder, "made")
        packages = Path(openvino.__file__).parent / "cmake"
        _configure(tools, sources, build, f"-DOpenVINO_DIR={packages}")
        _run([tools.cmake, "--build", str(build)])
        made.mkdir()
        shutil.copy2(build / LIBRARY, made)
        checksum = hashlib.sha256((made / LIBRARY).read_bytes()).hexdigest()
        record = json.dumps(asdict(key) | {"checksum": checksum}, indent=1)
        (made / RECORD).write_text(record, encoding="utf-8")
        if library.parent.is_dir() and not library.parent.is_symlink():  # one that cannot be used
            shutil.rmtree(library.parent)
        else:
            library.parent.unlink(missing_ok=True)
        made.replace(library.parent)


def _configure(tools: Toolchain, sources: Path, build: Path, *options: str) -> None:
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools.ninja}"] if tools.ninja else ["-G", "Unix Makefiles"]
    command = [tools.cmake, "-S", str(sources), "-B", str(build), *generator]
    _run([*command, f"-DCMAKE_CXX_COMPILER={tools.compiler}", "-DCMAKE_BUILD_TYPE=Release", *options])


def _run(command: Sequence[str]) -> None:
    """Runs a step of the build; raises `BackendError` with what it said when it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise BackendError(f"the C++ operation does not build; {Path(command[0]).name} said:\n{_words(done.stdout)}")


def _words(output: str) -> str:
    """The part of a build's output that begins with its first error."""
    lines = output.splitlines()
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), max(0, len(lines) - SHOWN_LINES))
    return "\n".join(lines[first : first + SHOWN_LINES])


def run_sanitized(sanitizer: str, report: Report, sources: Path = SOURCES) -> bool:
    """Builds the kernels' own tests with one of `SANITIZERS` and runs them; False when they find something.

    Raises `Unsupported` or `BackendError` as `build_native` does.
    """
    tools = find_toolchain()
    with tempfile.TemporaryDirectory(prefix="qsa-sanitize-") as folder:
        _configure(tools, sources, Path(folder), f"-DQSA_SANITIZE={sanitizer}")
        _run([tools.cmake, "--build", folder, "--target", "kernel_tests"])
        said, found = "", False
        for test in KERNEL_TESTS:
            command = [str(Path(folder, test))]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            said, found = f"{said}\n{done.stdout.strip()}", found or done.returncode != 0
    report(f"{sanitizer}: {'FINDINGS' if found else 'no finding'}{said}")
    return not found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all is well, 1 when a sanitizer finds something, 3 when nothing can be built."""
    parser = argparse.ArgumentParser(prog="python -m conformance.backends.openvino.build", description=__doc__)
    parser.add_argument("--sanitize", nargs="+", choices=SANITIZERS, default=(), metavar="|".join(SANITIZERS))
    chosen = parser.parse_args(arguments)
    try:
        if chosen.sanitize:
            found = [not run_sanitized(sanitizer, print) for sanitizer in chosen.sanitize]
            return int(any(found))
        print(build_native(lambda text: print(text, file=sys.stderr)))
    except (BackendError, Unsupported) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
