"""``python -m replica.engine.process FD PARENT_PID``: the engine process.

Started by ``replica.engine.engine`` and by nothing else.  It has an interpreter of its own, so
that no request handling ever waits for a step, and it never outlives its parent.
"""

import logging
import os
import signal
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from contracts.logs import configure_logging
from contracts.replica_api import Phase
from replica.engine.channel import Channel, ChannelClosed
from replica.engine.messages import EngineConfig, LoadFailed, Loading, Located
from replica.errors import ModelError
from replica.model import store
from replica.model.tokenizer_loader import load_tokenizer
from replica.parent_death import die_with_parent

logger = logging.getLogger(__name__)


def main() -> int:
    channel_fd, parent_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal signals the whole group: the parent decides
    channel = Channel(socket.socket(fileno=channel_fd))
    try:
        (config,) = channel.receive(timeout_s=None)
        assert isinstance(config, EngineConfig)
        configure_logging("replica.engine", config.log_level)
        return _serve_or_say_why(channel, config)
    except ChannelClosed:
        return 0


def _serve_or_say_why(channel: Channel, config: EngineConfig) -> int:
    try:
        _serve(channel, config)
    except (ModelError, OSError) as exc:  # OSError: files that cannot be read
        channel.send(LoadFailed(detail=str(exc)))
        return 1
    return 0


def _serve(channel: Channel, config: EngineConfig) -> None:
    def report(ratio: float) -> None:
        detail = f"downloading {config.model}"
        channel.send(Loading(phase=Phase.DOWNLOADING, progress_ratio=ratio, detail=detail))

    path = store.resolve(config.model, Path(config.model_cache_dir), report)
    channel.send(Located(path=str(path)))
    channel.send(Loading(phase=Phase.LOADING, progress_ratio=0.0, detail="reading the model"))
    tokenizer = load_tokenizer(path, lambda: datetime.now(UTC))
    # Not at the top: it imports compilers or torch, and a download wants to show its progress.
    from replica.engine.worker import serve

    serve(channel, config, path, tokenizer)


if __name__ == "__main__":
    # Not sys.exit: tearing down libraries takes half a second, in which nothing is left to save.
    os._exit(main())
