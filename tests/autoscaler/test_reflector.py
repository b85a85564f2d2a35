"""A list and a watch, over a server that ends, forgets and falls silent."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec
import pytest

from autoscaler.errors import ClusterRefused, Expired
from autoscaler.kubernetes.objects import Pod
from autoscaler.kubernetes.reflector import Collection, Reflector, WatchTimings
from autoscaler.kubernetes.wire import Json

TIMINGS = WatchTimings(silence_s=90.0, first_backoff_s=0.5, page_size=2)
Script = Sequence[bytes | Exception | float]  # a line, a refusal, or seconds of silence


def pod(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def notice(kind: str, name: str, version: int) -> bytes:
    return msgspec.json.encode({"type": kind, "object": pod(name, version)})


GONE = msgspec.json.encode({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})


class ScriptedServer:
    """Lists what it has; each watch follows the next script, the last one for ever."""

    def __init__(self, names: Sequence[str], *scripts: Script) -> None:
        self.names = list(names)
        self.scripts = list(scripts)
        self.queries: list[dict[str, str]] = []
        self.begun_at_s: list[float] = []
        self.num_lists = 0

    async def get(self, path: str, **query: str) -> bytes:
        first = int(query.get("continue", "0"))
        last = first + int(query["limit"])
        self.num_lists += first == 0
        more = str(last) if last < len(self.names) else ""
        items = [pod(name, 1) for name in self.names[first:last]]
        metadata = {"resourceVersion": "100", "continue": more}
        return msgspec.json.encode({"metadata": metadata, "items": items})

    async def lines(
        self, path: str, *, silence_s: float, **query: str
    ) -> AsyncGenerator[bytes, None]:
        self.queries.append(query)
        self.begun_at_s.append(asyncio.get_running_loop().time())
        script = self.scripts.pop(0) if self.scripts else [1e9]
        for step in script:
            match step:
                case bytes():
                    yield step
                case float():
                    await asyncio.sleep(min(step, silence_s))
                    if step > silence_s:
                        raise ClusterRefused("TimeoutError")
                case _:
                    raise step


async def after(server: ScriptedServer, seconds: float) -> Reflector[Pod]:
    reflector = Reflector(
        server,
        Collection("/pods", Pod, "app=x"),
        TIMINGS,
        monotonic_s=asyncio.get_running_loop().time,
        random=lambda: 0.5,
    )
    running = asyncio.create_task(reflector.run(asyncio.sleep))
    await asyncio.sleep(seconds)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return reflector


@pytest.mark.looptime
async def test_pages_are_put_together_and_changes_follow() -> None:
    changes = [
        notice("ADDED", "d", 101),
        notice("DELETED", "a", 102),
        notice("MODIFIED", "b", 103),
        1000.0,
    ]
    server = ScriptedServer(["a", "b", "c"], changes)
    reflector = await after(server, 5.0)
    assert set(reflector.items) == {"b", "c", "d"}
    assert reflector.items["b"].metadata.resource_version == "103"
    assert server.queries[0]["labelSelector"] == "app=x"
    assert server.queries[0]["allowWatchBookmarks"] == "true"


@pytest.mark.looptime
async def test_a_watch_that_ends_is_resumed_where_it_was() -> None:
    server = ScriptedServer(
        ["a"], [notice("ADDED", "b", 101), 300.0], [notice("BOOKMARK", "", 150)]
    )
    server.scripts[0] = [notice("ADDED", "b", 101), 60.0]
    reflector = await after(server, 62.0)
    assert [q["resourceVersion"] for q in server.queries[:2]] == ["100", "101"]
    assert server.num_lists == 1
    assert set(reflector.items) == {"a", "b"}


@pytest.mark.looptime
@pytest.mark.parametrize("gone", [[GONE], [Expired("410")]], ids=["in-the-stream", "at-once"])
async def test_a_history_that_is_gone_means_a_new_list(gone: Script) -> None:
    server = ScriptedServer(["a"], gone)
    await after(server, 5.0)
    assert server.num_lists == 2
    assert server.queries[1]["resourceVersion"] == "100"


@pytest.mark.looptime
async def test_a_server_that_always_forgets_is_not_asked_without_pause() -> None:
    server = ScriptedServer(["a"], *[[GONE]] * 1000)
    await after(server, 60.0)
    assert len(server.queries) < 12


@pytest.mark.looptime
async def test_a_server_that_hangs_up_at_once_is_not_asked_without_pause() -> None:
    server = ScriptedServer(["a"], *[[]] * 1000)
    await after(server, 60.0)
    assert len(server.queries) < 12


@pytest.mark.looptime
async def test_silence_is_noticed_and_the_watch_begun_anew() -> None:
    server = ScriptedServer(["a"], [10_000.0], [notice("ADDED", "b", 101), 1000.0])
    reflector = await after(server, 95.0)
    assert len(server.queries) == 2
    assert set(reflector.items) == {"a", "b"}


@pytest.mark.looptime
@pytest.mark.parametrize("broken", [b"<html>", ValueError("a defect")], ids=["html", "defect"])
async def test_whatever_breaks_a_watch_ends_that_watch_only(broken: bytes | Exception) -> None:
    server = ScriptedServer(["a"], [broken], [notice("ADDED", "b", 101), 1000.0])
    reflector = await after(server, 5.0)
    assert set(reflector.items) == {"a", "b"}


@pytest.mark.looptime
async def test_what_has_not_been_heard_of_for_long_is_not_told() -> None:
    refusals = [[ClusterRefused("no route")]] * 1000
    reflector = await after(ScriptedServer(["a"], *refusals), 200.0)
    with pytest.raises(ClusterRefused, match="nothing heard"):
        _ = reflector.items


@pytest.mark.looptime
async def test_before_the_first_list_nothing_is_known() -> None:
    reflector = Reflector(
        ScriptedServer([]), Collection("/pods", Pod), TIMINGS,
        monotonic_s=lambda: 0.0, random=lambda: 0.5,
    )  # fmt: skip
    with pytest.raises(ClusterRefused, match="not listed"):
        _ = reflector.items
    with pytest.raises(ClusterRefused, match="in time"):
        await reflector.listed(1.0)
