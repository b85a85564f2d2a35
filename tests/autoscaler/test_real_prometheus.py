"""The source against a real Prometheus, where PROMETHEUS_BINARY names one."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL

import pytest

from autoscaler.cluster import Address
from autoscaler.engine_metrics import ENGINE_READING, EngineSample
from autoscaler.gateway_metrics import GATEWAY_READING
from autoscaler.observe import GatewaySample
from autoscaler.prometheus import Prometheus
from tests.autoscaler.test_sources import SAMPLE, SGLANG, VLLM, engine, ok
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

GATEWAY = (
    'pandal_gateway_requests_total{endpoint="chat",status="200"} 7\n'
    'pandal_gateway_time_to_first_token_seconds_bucket{le="+Inf"} 6\n'
    "pandal_gateway_active_requests 2\npandal_gateway_waiting_requests 1\n"
)
NOWHERE = Address("127.0.0.1", 9)
FAR_TOO_FEW = 4  # samples that a query may load


@pytest.fixture
def binary() -> Path:
    if "PROMETHEUS_BINARY" not in os.environ:
        pytest.skip("PROMETHEUS_BINARY does not name a Prometheus server's program")
    return Path(os.environ["PROMETHEUS_BINARY"])


@asynccontextmanager
async def scraping(
    binary: Path, folder: Path, pages: dict[str, str], *more: str
) -> AsyncIterator[Address]:
    """A Prometheus that asks one pod for each page every second."""
    async with AsyncExitStack() as stack:
        targets = {}
        for pod, page in pages.items():
            targets[pod] = await stack.enter_async_context(engine(ok(page)))
        config, port = folder / "prometheus.json", free_port()
        config.write_text(json.dumps(_config(targets)))
        process = await asyncio.create_subprocess_exec(
            str(binary), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", *more, stdout=DEVNULL, stderr=DEVNULL,
        )  # fmt: skip
        try:
            yield Address("127.0.0.1", port)
        finally:
            process.terminate()
            await process.wait()


def asking(server: Address) -> Prometheus:
    return Prometheus(server, path="", namespace="ns", timeout_s=5.0)


def _config(targets: dict[str, Address]) -> dict[str, object]:
    told = [
        {"targets": [f"{at.host}:{at.port}"], "labels": {"namespace": "ns", "pod": pod}}
        for pod, at in targets.items()
    ]
    job = {"job_name": "pods", "scrape_interval": "1s", "static_configs": told}
    return {"scrape_configs": [job]}  # YAML is a superset of JSON


async def test_pods_are_told_as_they_were_scraped(binary: Path, tmp_path: Path) -> None:
    pages = {"a.b-0": VLLM, "escaped": VLLM.replace("vllm:", "vllm_"), "sglang": SGLANG,
             "gateway": GATEWAY}  # fmt: skip
    pods = dict.fromkeys((*pages, *(f"pod-{number:03}-of-many" for number in range(96))), NOWHERE)
    async with scraping(binary, tmp_path, pages) as server, asyncio.timeout(PATIENCE_S):
        source = asking(server)
        while True:
            engines = await source.read(pods, ENGINE_READING)
            gateways = await source.read({"gateway": NOWHERE}, GATEWAY_READING)
            found = {pod: sample for pod, sample in engines.items() if sample is not None}
            if len(found) == 3 and gateways["gateway"] is not None:
                break
            await asyncio.sleep(0.1)
    for sample in found.values():
        assert sample == EngineSample(
            SAMPLE.num_running, SAMPLE.num_waiting, SAMPLE.kv_cache_usage, SAMPLE.prompt_tokens,
            SAMPLE.generation_tokens, SAMPLE.num_finished, SAMPLE.ttft, sample.taken_at_s,
        )  # fmt: skip
    told = gateways["gateway"]
    assert told == GatewaySample(7, 1, 2, {float("inf"): 6.0}, told.taken_at_s)


async def test_a_query_that_loads_too_much_is_halved_until_it_is_given_up(
    binary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages, bound = {"p": VLLM, "q": VLLM}, f"--query.max-samples={FAR_TOO_FEW}"
    pods = dict.fromkeys(pages, NOWHERE)
    async with scraping(binary, tmp_path, pages, bound) as server, asyncio.timeout(PATIENCE_S):
        while "status 422" not in [getattr(r, "error", None) for r in caplog.records]:
            caplog.clear()
            assert await asking(server).read(pods, ENGINE_READING) == {"p": None, "q": None}
            await asyncio.sleep(0.1)
