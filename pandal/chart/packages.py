"""What an image holds beside our own code: a CycloneDX bill of materials, and a notice.

``python -m pandal.chart.packages FOLDER`` writes ``sbom.cdx.json`` and ``NOTICE`` into it: of every
package that is installed here, locked or come along, with the licence that it states.
https://cyclonedx.org/docs/1.6/json/
"""

import re
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageMetadata, distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

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


def installed_packages(found: Iterable[Distribution]) -> list[Package]:
    """By name, without ourselves; the first found of a name is what is imported."""
    packages: dict[str, Package] = {}
    for each in found:
        name = each.metadata["Name"]
        if name != "pandal":
            packages.setdefault(name, Package(name, each.version, _licence(each.metadata)))
    return [packages[name] for name in sorted(packages)]


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
    name = re.sub(r"[-_.]+", "-", package.name).lower()
    purl = f"pkg:pypi/{name}@{quote(package.version, safe='')}"
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
    (folder,) = map(Path, arguments)
    packages = installed_packages(distributions())
    (folder / "sbom.cdx.json").write_text(bill_of_materials(packages))
    (folder / "NOTICE").write_text(notice(packages))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
