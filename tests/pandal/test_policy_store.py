import subprocess
import sys
from pathlib import Path

import pytest

from contracts.policy import PolicyDocument
from pandal.datadir import DataDir
from pandal.errors import StateUnreadable
from pandal.keys import KeyRequest, create_key, edit_policies, read_policies

NUM_EDITORS = 2
EDITS_EACH = 25

EDITOR = """
import sys
from pathlib import Path
from contracts.names import TenantId
from pandal.datadir import DataDir
from pandal.keys import KeyRequest, create_key
for number in range(int(sys.argv[3])):
    create_key(DataDir(Path(sys.argv[1])), KeyRequest(TenantId(f"{sys.argv[2]}-{number}")))
"""


def test_two_processes_editing_at_once_lose_nothing(data_dir: DataDir) -> None:
    editors = [
        subprocess.Popen(
            (sys.executable, "-c", EDITOR, str(data_dir.root), f"editor{number}", str(EDITS_EACH))
        )
        for number in range(NUM_EDITORS)
    ]
    assert [editor.wait() for editor in editors] == [0] * NUM_EDITORS
    document = read_policies(data_dir.policies)
    assert len(document.tenants) == document.version == NUM_EDITORS * EDITS_EACH


def test_each_edit_raises_the_version_by_one(data_dir: DataDir) -> None:
    versions = [edit_policies(data_dir.policies, lambda before: before).version for _ in range(3)]
    assert versions == [1, 2, 3]


def test_a_document_that_gateways_would_refuse_is_not_written(data_dir: DataDir) -> None:
    create_key(data_dir, KeyRequest("acme"))
    before = data_dir.policies.read_bytes()

    def doubled(document: PolicyDocument) -> PolicyDocument:
        return PolicyDocument(version=0, tenants=document.tenants * 2)

    with pytest.raises(ValueError, match="stands twice"):
        edit_policies(data_dir.policies, doubled)
    assert data_dir.policies.read_bytes() == before


def test_a_damaged_file_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    path.write_text('{"type": "policy.document.v1", "version": -1}')
    with pytest.raises(StateUnreadable, match=r"policies\.json.*version"):
        edit_policies(path, lambda before: before)
    assert "-1" in path.read_text()
