"""The chart's alerts, and servers that are scraped for them."""

import http.client
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.chart import manifests
from tests.chart.test_rendering import CI, scenario
from tests.support.helm import helm
from tests.support.promql import Timeline
from tests.support.waiting import eventually

MINUTE_S, HOUR_S = 60.0, 3_600.0

Rules = Mapping[str, Mapping[str, Any]]


def rendered_rules(folder: Path, *options: str) -> Rules:
    """By the alert's name, as the chart installs them in namespace ``ns``."""
    (everything,) = (path for path in CI if scenario(path) == "everything")
    rendered = helm(4, folder).template([everything], *options)
    (found,) = manifests.of_kind(rendered, "PrometheusRule")
    return {rule["alert"]: rule for group in found["spec"]["groups"] for rule in group["rules"]}


class Watch:
    """One server, scraped when a test says so."""

    def __init__(self, scrape: Callable[[], str]) -> None:
        self.timeline = Timeline()
        self._scrape = scrape

    def look(self) -> None:
        self.timeline.add(self._scrape(), namespace="ns", pod="pod-0")

    def hold(
        self,
        span_s: float,
        every_s: float = MINUTE_S,
        once: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """As it is now, or once it is so, for so long."""
        text = ""

        def is_so() -> bool:
            nonlocal text
            text = self._scrape()
            return once(text)

        eventually(is_so, "what is scraped to be so")
        for _ in range(round(span_s / every_s)):
            self.timeline.now_s += every_s
            self.timeline.add(text, namespace="ns", pod="pod-0")


def watch(port: int) -> Watch:
    return Watch(lambda: asked(port, "GET", "/metrics").decode())


def asked(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        return connection.getresponse().read()
    finally:
        connection.close()
