"""Compiles the C source once per machine, compiler and source, into the user's cache folder."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from wholecurve.files import write_bytes

SOURCE = Path(__file__).with_name("elementwise.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fPIC", "-shared")
# the first that the compiler takes; 512 bits are half as fast again as the 256 that gcc prefers by itself
MACHINE_FLAGS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
SECONDS = 120
CXX_COMPILERS = ("c++", "g++", "clang++")
CXX_FLAGS = ("-std=c++20", *FLAGS[1:], "-pthread")


@dataclass(frozen=True)
class Program:
    """A library in C++: the file to compile, the files that it includes, and macros like NAME=VALUE."""

    main: Path
    includes: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()


def built(source=SOURCE, folder=None):
    """Path of the compiled library, compiled if need be; None where there is no compiler or it fails.

    source: a C file or a Program. folder: where it is kept, None for the user's cache. A library's name holds the
    digest of its own bytes: a file that is not whole is never loaded.
    """
    try:
        compiler = find_compiler(*(("CXX", CXX_COMPILERS) if isinstance(source, Program) else ()))
        if compiler is None:
            return None
        folder, key = folder or cache_folder(), build_key(compiler, source)
        return kept(folder, key) or compile_into(folder, key, compiler, source)
    except (OSError, subprocess.SubprocessError, ModuleNotFoundError):  # without platformdirs no cache folder is known
        return None


def cache_folder():
    """Folder of the compiled libraries."""
    from wholecurve.models import store  # the only thing that kernels ask of models

    return store.cache_folder() / "native"


def find_compiler(variable="CC", names=COMPILERS):
    """The command of a compiler as a list, None where there is none. $CC ($CXX) wins, even where it does not work."""
    if chosen := os.environ.get(variable):
        return shlex.split(chosen)
    found = next((path for path in map(shutil.which, names) if path), None)
    return None if found is None else [found]


def build_key(compiler, source):
    """Digest of all that a library depends on: source, flags, compiler and the processor's features."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    files, flags = arguments_of(source)
    parts = [file.read_bytes() for file in files]
    parts += [repr((flags, MACHINE_FLAGS, compiler)).encode(), version, processor().encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def arguments_of(source):
    """(files that a library depends on, flags beside those for the machine)."""
    if isinstance(source, Program):
        return [source.main, *source.includes], (*CXX_FLAGS, *(f"-D{define}" for define in source.defines))
    return [source], FLAGS


def processor():
    """The processor's features as far as the system tells them: code for one need not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {features}"


def kept(folder, key):
    """The library of this key if it is there and whole."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        if path.name == library_name(key, path.read_bytes()):
            return path
    return None


def library_name(key, content):
    return f"{key}-{hashlib.sha256(content).hexdigest()[:16]}.so"


def compile_into(folder, key, compiler, source):
    """Path of a library compiled now, None if the compiler refuses it with all flags."""
    files, flags = arguments_of(source)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "native.so"
        for machine_flags in MACHINE_FLAGS:
            command = [*compiler, *flags, *machine_flags, "-o", str(made), str(files[0]), "-lm"]
            result = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
            if result.returncode == 0 and made.is_file():
                content = made.read_bytes()
                target = folder / library_name(key, content)
                write_bytes(target, content)
                return target
    return None
