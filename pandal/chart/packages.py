"""What an image holds beside our own code: a CycloneDX bill of materials, and a notice.

``python -m pandal.chart.packages LOCK FOLDER`` writes ``sbom.cdx.json`` and ``NOTICE`` into it: of
the lock's packages those that are installed here, with the licences that they state.
https://cyclonedx.org/docs/1.6/json/
"""

import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final

import msgspec

_LONGEST: Final = 80  # characters; a longer "License" is the text of one
_NOTICE: Final = """\
Pandal
Licensed under the Apache License, Version 2.0.

This image holds the packages below, each under its own licence, which its own files state.

"""


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    licence: str  # empty: it does not say


def locked_packages(lock: str) -> Iterator[tuple[str, str]]:
    """Names and versions."""
    for line in lock.splitlines():
        found = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;#]+)", line.strip())
        if found is not None:
            yield found[1], found[2]


def installed_packages(lock: str) -> Iterator[Package]:
    for name, version in locked_packages(lock):
        try:
            yield Package(name, version, _licence(metadata(name)))
        except PackageNotFoundError:
            continue


def _licence(told: PackageMetadata) -> str:
    said = {key: told[key].strip() for key in ("License-Expression", "License") if key in told}
    words = said.get("License-Expression") or _classified(told) or said.get("License", "")
    return words.partition("\n")[0][:_LONGEST]


def _classified(told: PackageMetadata) -> str:
    marks = (c for c in told.get_all("Classifier") or () if c.startswith("License ::"))
    return " OR ".join(mark.rpartition(" :: ")[2] for mark in marks)


def bill_of_materials(packages: Sequence[Package]) -> str:
    """The same for the same packages: its serial number is made of them."""
    components = [_component(package) for package in packages]
    named = " ".join(component["purl"] for component in components)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, named)}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "pandal"}},
        "components": components,
    }
    return msgspec.json.format(msgspec.json.encode(bill), indent=1).decode() + "\n"


def _component(package: Package) -> dict[str, Any]:
    purl = f"pkg:pypi/{package.name}@{package.version}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    if package.licence:
        found["licenses"] = [{"license": {"name": package.licence}}]
    return found


def notice(packages: Sequence[Package]) -> str:
    return _NOTICE + "".join(f"{p.name} {p.version}: {p.licence}\n" for p in packages)


def main(arguments: Sequence[str]) -> int:
    lock, folder = map(Path, arguments)
    packages = list(installed_packages(lock.read_text()))
    (folder / "sbom.cdx.json").write_text(bill_of_materials(packages))
    (folder / "NOTICE").write_text(notice(packages))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
