"""Running one piece of work again and again over the same tensors: as a CUDA graph, or by calling it."""

import contextlib
from collections.abc import Callable, Iterator

import torch

Outputs = tuple[torch.Tensor, ...]
Work = Callable[[], Outputs]
WARM_UP_CALLS = 2


class EagerReplay:
    """Calls `work` at every replay. As with a graph, the outputs lie where those of the first call lie."""

    def __init__(self, work: Work):
        self.work = work
        self.outputs = tuple(output.clone() for output in work())

    def replay(self) -> Outputs:
        for kept, new in zip(self.outputs, self.work(), strict=True):
            kept.copy_(new)
        return self.outputs


class CudaReplay:
    """`work` captured as a CUDA graph: one launch for all its kernels, which read and write the same addresses.

    pool: memory that graphs share which never run at the same time, None for memory of its own.
    """

    def __init__(self, work: Work, pool=None):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles and allocates outside of the capture
            for _ in range(WARM_UP_CALLS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # other threads of a server may allocate meanwhile
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self.outputs = work()

    def replay(self) -> Outputs:
        self.graph.replay()
        return self.outputs


def replay_for(device: torch.device, work: Work, pool=None) -> EagerReplay | CudaReplay:
    """A CUDA graph of `work` on a GPU; elsewhere the same static tensors without a graph."""
    return CudaReplay(work, pool) if torch.device(device).type == "cuda" else EagerReplay(work)


@contextlib.contextmanager
def no_synchronisation(device: torch.device) -> Iterator[None]:
    """On a GPU an error where the host would wait for it inside the block; nothing elsewhere. For debugging."""
    if torch.device(device).type != "cuda":
        yield
        return
    former = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(former)
