"""The C++ of the native form compiled some other way: for less capable processors, quickly, or changed."""

import contextlib
import platform
import re
import shutil
import subprocess

import pytest

from wholecurve.kernels.native import build
from wholecurve.models.native import library
from wholecurve.models.native import llama as native_llama

SOURCES = library.SOURCES
# name: flags for the machine, None for those of every build
FORMS = {"as built": None, "any processor": ()}
if platform.machine() == "x86_64":
    FORMS["no AVX-512"] = ("-march=native", "-mno-avx512f")
    FORMS["no AVX-512 BF16"] = ("-march=native", "-mno-avx512bf16")


@contextlib.contextmanager
def quick_builds(form="as built", optimise="-O1", more=()):
    """Builds of a form inside; what a library computes does not depend on how far it is optimised."""
    with pytest.MonkeyPatch.context() as patch:
        flags = tuple(optimise if flag == "-O3" else flag for flag in build.CXX_FLAGS)
        patch.setattr(build, "CXX_FLAGS", (*flags, *more))
        if FORMS[form] is not None:
            patch.setattr(build, "MACHINE_FLAGS", (FORMS[form],))
        yield


@contextlib.contextmanager
def in_use(libraries):
    """The native form calls `libraries` {dtype: library} inside. Models made inside must not outlive it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_llama, "load", libraries.__getitem__)
        yield


def compiled_headers(folder):
    """Flags with which the system's headers are read in their compiled form: half the time of a quick build.

    Inside `quick_builds`. A compiler that cannot use it reads them as they are.
    """
    texts = [path.read_text() for path in SOURCES.glob("*.[hc]pp")]
    names = sorted({name for text in texts for name in re.findall("#include <(.*)>", text)})
    header = folder / "common.hpp"
    header.write_text("".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in names))
    command = [*build.find_compiler("CXX", build.CXX_COMPILERS), *build.CXX_FLAGS, *build.MACHINE_FLAGS[0]]
    command += ["-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run([flag for flag in command if flag != "-shared"], check=False, capture_output=True)
    return "-include", str(header)


def copied_sources(folder):
    """A copy of the C++ in `folder`, to be changed."""
    folder.mkdir()
    for path in SOURCES.glob("*.[hc]pp"):
        shutil.copy(path, folder)
    return folder
