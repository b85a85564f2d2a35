"""Fetches a model's files into a volume before the engine starts.

``fetch_files.py LIST.json FOLDER``.  A file is at its place only when it is whole: it comes under
another name, is measured (and hashed, where a hash is named), and is then renamed; what it came of
is written beside it.  What is there already is not fetched again, unless something else is named by
now; what was half there is gone on with.  Exit status 1: told why, and started again by Kubernetes.
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

Entry = Mapping[str, Any]  # url, path, sizeBytes, usesHubToken, and sha256 if known


class Unsound(Exception):
    """What came is not what was named."""


def fetch(entry: Entry, folder: Path) -> None:
    place = folder / entry["path"]
    source = place.with_name(f".{place.name}.source.json")
    if is_there(entry, place, source):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    part = emptied_of_others(entry, place)
    receive(entry, part)
    try:
        check(entry, part)
    except Unsound:
        if part.stat().st_size >= entry["sizeBytes"]:  # else the next try goes on with it
            part.unlink()
        raise
    source.unlink(missing_ok=True)  # so that it is never of another file than the one beside it
    part.replace(place)
    source.write_text(json.dumps(source_of(entry)))


def source_of(entry: Entry) -> dict[str, str]:
    return {"url": entry["url"], "sha256": entry.get("sha256", "")}


def is_there(entry: Entry, place: Path, source: Path) -> bool:
    """By its hash where one is named, which was found when it came or is found now; else by url."""
    if not place.is_file() or place.stat().st_size != entry["sizeBytes"]:
        return False
    known = json.loads(source.read_text()) if source.exists() else {}
    wanted = source_of(entry)
    if not wanted["sha256"]:
        return bool(known.get("url") == wanted["url"])
    if known.get("sha256") == wanted["sha256"]:
        return True
    if hashed(place) != wanted["sha256"]:
        return False
    source.write_text(json.dumps(wanted))
    return True


def emptied_of_others(entry: Entry, place: Path) -> Path:
    """Where this very file is received: half of another is never gone on with."""
    told = hashlib.sha256(json.dumps(source_of(entry)).encode()).hexdigest()[:12]
    part = place.with_name(f"{place.name}.{told}.part")
    for other in place.parent.iterdir():
        if other.name.startswith(f"{place.name}.") and other.suffix == ".part" and other != part:
            other.unlink()
    if part.exists() and part.stat().st_size > entry["sizeBytes"]:
        part.unlink()
    return part


def hashed(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def receive(entry: Entry, part: Path) -> None:
    """From where the last try ended, if the server can; at most a byte more than there may be."""
    begun = part.stat().st_size if part.exists() else 0
    if 0 < begun == entry["sizeBytes"]:
        return
    request = urllib.request.Request(entry["url"])
    if begun:
        request.add_header("Range", f"bytes={begun}-")
    token = os.environ.get("HUB_TOKEN")
    if token and entry.get("usesHubToken"):
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
        found = hashed(part)
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
