"""A release of the chart in a namespace of the control plane, by one of the Helms."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.helm import CHART, Helm


class Release:
    def __init__(self, helm: Helm, config: Path, folder: Path, namespace: str) -> None:
        self._helm = helm
        self._config = config
        self._folder = folder
        self._namespace = namespace

    async def run(self, command: str, *arguments: str, values: Any = None) -> str:
        files = []
        if values is not None:
            path = self._folder / "values.yaml"
            path.write_text(yaml.safe_dump(values))
            files = [str(CHART), "-f", str(path)]
        done = await asyncio.to_thread(
            self._helm.run, command, "r", *files, "-n", self._namespace, *arguments,
            "--kubeconfig", str(self._config),
        )  # fmt: skip
        assert "would violate PodSecurity" not in done.stderr + done.stdout
        return done.stdout

    def kubectl(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._helm.kubectl), "--kubeconfig", str(self._config), *arguments],
            input=text, capture_output=True, text=True,
        )  # fmt: skip
