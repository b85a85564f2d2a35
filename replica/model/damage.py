"""Files that are not what they should be, said as such.

A model comes from files that anyone may have written: any value can have any type, and what a
parser, a tokenizer or a tensor library raises for that is not known in advance.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replica.errors import ModelError, ModelInvalid


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Inside, whatever goes wrong is a ModelError that names ``path``."""
    try:
        yield
    except ModelError:
        raise
    except Exception as exc:
        summary = " ".join(str(exc).split()) or "no details"
        raise ModelInvalid(f"{path.name}: {type(exc).__name__}: {summary}") from exc
