"""Compiles the C source once per machine, compiler and source, into the user's cache folder."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from wholecurve.files import write_bytes

SOURCE = Path(__file__).with_name("elementwise.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", "-fPIC", "-shared")
# the first that the compiler takes; 512 bits are half as fast again as the 256 that gcc prefers by itself
MACHINE_FLAGS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
SECONDS = 120


def built(source=SOURCE, folder=None):
    """Path of the compiled library, compiled if need be; None where there is no compiler or it fails.

    folder: where it is kept, None for the user's cache. A library's name holds the digest of its own bytes: a file
    that is not whole is never loaded.
    """
    try:
        compiler = find_compiler()
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


def find_compiler():
    """The command of a C compiler as a list, None where there is none. $CC wins, even where it does not work."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    found = next((path for path in map(shutil.which, COMPILERS) if path), None)
    return None if found is None else [found]


def build_key(compiler, source):
    """Digest of all that a library depends on: source, flags, compiler and the processor's features."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    parts = [source.read_bytes(), repr((FLAGS, MACHINE_FLAGS, compiler)).encode(), version, processor().encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


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
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "native.so"
        for machine_flags in MACHINE_FLAGS:
            command = [*compiler, *FLAGS, *machine_flags, "-o", str(made), str(source), "-lm"]
            result = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
            if result.returncode == 0 and made.is_file():
                content = made.read_bytes()
                target = folder / library_name(key, content)
                write_bytes(target, content)
                return target
    return None
