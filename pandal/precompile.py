"""Compiles a model's kernels ahead of its first start, into the cache that replicas read.

It runs in this process, and shares a replica's settings and code: what is compiled is what a
replica with the same settings looks for.  Two at once are safe: the second waits and finds it done.
"""

import time
from pathlib import Path

from contracts.replica_api import Phase
from pandal.errors import FleetFailed
from pandal.screen import Screen
from replica.engine.backend import choose_backend
from replica.engine.messages import EngineConfig, KvCacheDtype, Precision
from replica.errors import ModelError
from replica.model import store
from replica.model.loader import open_model
from replica.settings import Settings

_NUM_BLOCKS = 2  # code does not depend on it


def compile_kernels(
    model: str,
    *,
    precision: Precision,
    kv_cache_dtype: KvCacheDtype,
    model_cache: Path | None,
    screen: Screen,
) -> None:
    """Raises FleetFailed for a model that cannot be had."""
    config = _config(model, precision, kv_cache_dtype, model_cache)
    started_at_s = time.monotonic()
    try:
        with screen.progress() as view:
            name = store.model_name(model)
            path = store.resolve(
                model,
                Path(config.model_cache_dir),
                lambda ratio: view.show(name, Phase.DOWNLOADING, ratio, ""),
            )
            backend = choose_backend(config, open_model(path), ())
            backend.load(
                _NUM_BLOCKS,
                lambda ratio, detail: view.show(name, Phase.LOADING, ratio, detail),
            )
    except (ModelError, OSError) as exc:
        raise FleetFailed(str(exc)) from exc
    screen.line(f"{backend.description}; {time.monotonic() - started_at_s:.0f} s")


def _config(
    model: str, precision: Precision, kv_cache_dtype: KvCacheDtype, model_cache: Path | None
) -> EngineConfig:
    given = {"model": model, "precision": precision, "kv_cache_dtype": kv_cache_dtype}
    settings = Settings.model_validate(given)
    if model_cache is not None:
        settings = settings.model_copy(update={"model_cache_dir": model_cache})
    return settings.engine_config()
