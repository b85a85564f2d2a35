"""Ctrl-C before a command listens for it."""

import pytest

from tests.pandal.command_line import pandal

# As if the user had pressed it while ``module`` was being imported.
INTERRUPTED = (
    "import os, signal; sys.meta_path.insert(0, type('Finder', (), {{'find_spec': staticmethod("
    "lambda name, *_: os.kill(os.getpid(), signal.SIGINT) if name == '{module}' else None)}})())"
)


@pytest.mark.parametrize("module", ["pandal.cli", "pandal.plan", "pandal.launch"])
def test_ctrl_c_while_it_starts_ends_it_quietly(module: str) -> None:
    result = pandal("up", prepare=INTERRUPTED.format(module=module))
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
