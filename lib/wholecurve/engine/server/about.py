"""What a server tells of its engine, so that whoever measures it need not believe a command line."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from wholecurve.engine.engine import Engine


def engine_about(engine: "Engine") -> dict[str, str]:
    """The settings in effect, read from the engine itself, as labels of one metric."""
    model, cache, scheduler = engine.model, engine.cache, engine.scheduler
    pools = [pool for spec, pool in zip(cache.specs, cache.pools, strict=True) if pool and spec.kind != "state"]
    about = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": torch.device(model.device).type,
        "form": type(model).__name__,
        "threads": getattr(model, "threads", torch.get_num_threads()),
        "max_sequences": scheduler.max_sequences,
        "max_batch_tokens": scheduler.max_batch_tokens,
        "block_size": ",".join(str(pool.block_size) for pool in pools),
        # what a sequence can use: the group that holds the fewest tokens bounds it
        "cache_tokens": min((pool.num_blocks * pool.block_size for pool in pools), default=cache.settings.cache_tokens),
        "prefix_cache": cache.settings.prefix_cache,
        "overlap": engine.overlap,
        "speculation": type(engine.speculation).__name__ if engine.speculation else "none",
    }
    return {name: str(value) for name, value in about.items()}
