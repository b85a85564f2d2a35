"""What an examination found, and what to do about it."""

import enum

import msgspec


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, until it does not
    FAILURE = "failure"  # the exit code is not 0


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="finding.v1"):
    level: Level
    about: str  # valkey, kafka, policies, ...
    fact: str
    advice: str = ""  # what to do; "" where there is nothing to do


def fine(about: str, fact: str) -> Finding:
    return Finding(level=Level.OK, about=about, fact=fact)


def warning(about: str, fact: str, advice: str) -> Finding:
    return Finding(level=Level.WARNING, about=about, fact=fact, advice=advice)


def failure(about: str, fact: str, advice: str) -> Finding:
    return Finding(level=Level.FAILURE, about=about, fact=fact, advice=advice)
