"""Fetches a model's files into a volume before the engine starts.

``fetch_files.py LIST.json FOLDER``.  A file is at its place only when it is whole: it comes under
another name, is measured (and hashed, where a hash is named), and is then renamed.  What is there
already is not fetched again; what was half there is gone on with.  Exit status 1: told why, and
started again by Kubernetes.
"""

import fcntl
import hashlib
import json
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 60

Entry = Mapping[str, Any]  # url, path, sizeBytes, and sha256 if known


class Unsound(Exception):
    """What came is not what was named."""


def fetch(entry: Entry, folder: Path) -> None:
    place = folder / entry["path"]
    if place.is_file() and place.stat().st_size == entry["sizeBytes"]:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(place.name + ".part")
    if part.exists() and part.stat().st_size > entry["sizeBytes"]:
        part.unlink()
    receive(entry, part)
    try:
        check(entry, part)
    except Unsound:
        if part.stat().st_size >= entry["sizeBytes"]:  # else the next try goes on with it
            part.unlink()
        raise
    part.replace(place)


def receive(entry: Entry, part: Path) -> None:
    """From where the last try ended, if the server can; at most a byte more than there may be."""
    begun = part.stat().st_size if part.exists() else 0
    if 0 < begun == entry["sizeBytes"]:
        return
    request = urllib.request.Request(entry["url"])
    if begun:
        request.add_header("Range", f"bytes={begun}-")
    if token := os.environ.get("HUB_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    with (
        urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer,
        part.open("ab" if answer.status == 206 else "wb") as file,
    ):
        left = entry["sizeBytes"] - file.tell() + 1
        while left > 0 and (chunk := answer.read(min(CHUNK_BYTES, left))):
            left -= file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def check(entry: Entry, part: Path) -> None:
    """Raises Unsound."""
    size = part.stat().st_size
    if size != entry["sizeBytes"]:
        raise Unsound(f"{entry['path']}: {entry['sizeBytes']} bytes expected, got {size}")
    if entry.get("sha256"):
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != entry["sha256"]:
            raise Unsound(f"{entry['path']}: sha256 {entry['sha256']} expected, got {found}")


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[1])
    entries = json.loads(Path(arguments[0]).read_text())
    try:
        with (folder / ".fetch.lock").open("w") as lock:  # pods may share the volume
            fcntl.flock(lock, fcntl.LOCK_EX)
            for entry in entries:
                fetch(entry, folder)
    except (Unsound, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
