"""A real Kubernetes control plane on 127.0.0.1, from the programs that KUBEBUILDER_ASSETS names.

etcd, API server, controller manager and scheduler are the real ones; kwok plays the nodes' agents
and moves pods through their phases (``stages.yaml`` beside this file says how fast).  Each process
is ended by its id.
"""

import json
import os
import secrets
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
STAGES = Path(__file__).with_name("stages.yaml")
POD_ADDRESSES = "127.77.0.1/16"  # loopback: a test may answer for a pod
AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:fleet", "system:serviceaccounts:chart"]
- level: None
"""


def kubebuilder_assets() -> Path:
    """Skips where none are named: the programs are too large to come with the packages."""
    if "KUBEBUILDER_ASSETS" not in os.environ:
        pytest.skip("KUBEBUILDER_ASSETS does not name a folder with etcd and Kubernetes' programs")
    folder = Path(os.environ["KUBEBUILDER_ASSETS"])
    missing = [name for name in PROGRAMS if not (folder / name).exists()]
    if missing:
        pytest.skip(f"KUBEBUILDER_ASSETS has no {', '.join(missing)}")
    return folder


class ControlPlane:
    def __init__(self, assets: Path, folder: Path) -> None:
        self._assets = assets
        self._folder = folder
        self._certs = folder / "certs"
        self._certs.mkdir(parents=True)
        self._etcd, self._peer, self.port = free_port(), free_port(), free_port()
        self.server = f"https://127.0.0.1:{self.port}"
        self.ca = self._certs / "apiserver.crt"
        self.audit_log = folder / "audit.log"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tokens = {user: secrets.token_hex(16) for user in ("admin", *PROGRAMS[2:])}

    def start(self) -> None:
        self._make_keys()
        etcd, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd", f"--data-dir={self._folder / 'etcd'}", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync", "--log-level=warn",
        )  # fmt: skip
        self.start_api_server()
        for program in PROGRAMS[2:]:
            self.kubeconfig(program, self._tokens[program])
        self._run(
            "kube-controller-manager", self._config("kube-controller-manager"),
            "--leader-elect=false", "--secure-port=0", f"--root-ca-file={self.ca}",
            f"--service-account-private-key-file={self._certs / 'sa.key'}",
            "--use-service-account-credentials=true", f"--flex-volume-plugin-dir={self._folder}",
            "--controllers=*,-nodeipam,-route,-service-lb-controller,-cloud-node-lifecycle-controller",
        )  # fmt: skip
        self._run(
            "kube-scheduler", self._config("kube-scheduler"), "--leader-elect=false",
            "--secure-port=0",
        )  # fmt: skip
        self._run(
            "kwok", self._config("kwok"), "--manage-all-nodes=true", f"--cidr={POD_ADDRESSES}",
            "--node-lease-duration-seconds=40", f"--config={STAGES}",
        )  # fmt: skip

    def start_api_server(self) -> None:
        """Also again, on the same port and over the same data."""
        policy = self._folder / "audit-policy.yaml"
        policy.write_text(AUDIT_POLICY)
        self._run(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1", f"--secure-port={self.port}", f"--cert-dir={self._certs}",
            f"--token-auth-file={self._certs / 'tokens.csv'}", "--authorization-mode=Node,RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--anonymous-auth=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._certs / 'sa.pub'}",
            f"--service-account-signing-key-file={self._certs / 'sa.key'}",
            "--allow-privileged=true", "--profiling=false", "--endpoint-reconciler-type=none",
            f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}",
        )  # fmt: skip
        eventually(self._is_ready, "the API server to be ready")

    def kill_api_server(self) -> None:
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def forget_history(self) -> None:
        """Whoever was at an older version than now finds nothing to go on from (410)."""
        written = self._ask_etcd("put", {"key": "anNjcmFw", "value": "MQ=="})
        self._ask_etcd("compaction", {"revision": written["header"]["revision"]})

    def _ask_etcd(self, call: str, body: Mapping[str, str]) -> Any:
        """https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/"""
        url = f"http://127.0.0.1:{self._etcd}/v3/kv/{call}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as answer:
            return json.load(answer)

    def stop(self) -> None:
        for name in reversed(list(self._processes)):
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def kubeconfig(self, name: str, token: str | None = None, *, server: str | None = None) -> Path:
        """Of the administrator, or of whoever has the token; ``server``: a way round to it."""
        path = self._folder / f"{name}.kubeconfig"
        address = server or self.server
        path.write_text(
            f"""apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{address}", certificate-authority: "{self.ca}"}}}}]
users: [{{name: u, user: {{token: "{token or self._tokens["admin"]}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""
        )
        return path

    def _make_keys(self) -> None:
        users = {
            "admin": 'admin,"system:masters"',
            "kube-controller-manager": 'system:kube-controller-manager,""',
            "kube-scheduler": 'system:kube-scheduler,""',
            "kwok": 'kwok,"system:masters"',
        }
        lines = []
        for user, told in users.items():
            name, groups = told.split(",")
            lines.append(f"{self._tokens[user]},{name},{name},{groups}")
        (self._certs / "tokens.csv").write_text("\n".join(lines) + "\n")
        key, public = self._certs / "sa.key", self._certs / "sa.pub"
        for command in (f"genrsa -out {key} 2048", f"rsa -in {key} -pubout -out {public}"):
            subprocess.run(["openssl", *command.split()], check=True, capture_output=True)

    def _run(self, program: str, *arguments: str) -> None:
        with (self._folder / f"{program}.log").open("ab") as log:
            self._processes[program] = subprocess.Popen(
                [str(self._assets / program), *arguments], stdout=log, stderr=log
            )

    def _config(self, program: str) -> str:
        return f"--kubeconfig={self._folder / f'{program}.kubeconfig'}"

    def _is_ready(self) -> bool:
        log = self._folder / "kube-apiserver.log"
        assert self._processes["kube-apiserver"].poll() is None, log.read_text()[-2000:]
        request = urllib.request.Request(
            f"{self.server}/readyz", headers={"Authorization": f"Bearer {self._tokens['admin']}"}
        )
        try:
            context = ssl.create_default_context(cafile=self.ca)
            with urllib.request.urlopen(request, context=context, timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
