"""Who sends: names, shares and promises from a file; keys from elsewhere, and never shown."""

import json
from pathlib import Path

import pytest

from pandal.bench.target import parse_target, request_head
from pandal.bench.tenants import Slo, read_key_file, read_tenants
from pandal.errors import BadOption

DEFAULT = Slo(ttft_s=2.0, tpot_s=0.2)
KEY = "sk-do-not-show-me"


def test_a_file_names_tenants(tmp_path: Path) -> None:
    (tmp_path / "acme.key").write_text(KEY + "\n")
    path = tmp_path / "tenants.toml"
    path.write_text(
        '[[tenants]]\nname = "acme"\napi_key_file = "acme.key"\nweight = 3\n'
        'slo = { ttft_s = 0.5, tpot_s = 0.05 }\n[[tenants]]\nname = "globex"\n'
    )
    acme, globex = read_tenants(path, DEFAULT)
    assert (acme.name, acme.weight, acme.api_key) == ("acme", 3, KEY)
    assert acme.slo == Slo(ttft_s=0.5, tpot_s=0.05)
    assert (globex.weight, globex.slo, globex.api_key) == (1.0, DEFAULT, None)
    assert KEY not in repr(acme)


def test_json_will_do_and_weights_may_be_zipf(tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    entries = [{"name": "a"}, {"name": "b"}, {"name": "c", "weight": 7}]
    path.write_text(json.dumps({"zipf_exponent": 1, "tenants": entries}))
    assert [tenant.weight for tenant in read_tenants(path, DEFAULT)] == [1.0, 0.5, 7.0]


@pytest.mark.parametrize(
    "text",
    [
        "[[tenants]]\nname = 1",
        "tenants = []",
        '[[tenants]]\nname = "a"\n[[tenants]]\nname = "a"',
        '[[tenants]]\nname = "a"\nweight = 0',
        '[[tenants]]\nname = "a"\nkey = "k"',
        '[[tenants]]\nname = "a"\napi_key_env = "SURELY_NOT_SET_ANYWHERE"',
        '[[tenants]]\nname = "a"\napi_key_file = "absent"',
        "not toml",
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(BadOption):
        read_tenants(path, DEFAULT)


@pytest.mark.parametrize("content", ["", "two words", "sk-\x00", "sk-ä"])
def test_what_is_no_key_is_not_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(BadOption) as refusal:
        read_key_file(path)
    assert not content or content not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "path", "port"),
    [
        ("http://host:8000", "/v1/chat/completions", 8000),
        ("http://host:8000/v1/", "/v1/chat/completions", 8000),
        ("https://host/openai/v1", "/openai/v1/chat/completions", 443),
        ("http://host/v1/chat/completions", "/v1/chat/completions", 80),
    ],
)
def test_a_base_url_is_enough(url: str, path: str, port: int) -> None:
    target = parse_target(url)
    assert (target.path, target.port) == (path, port)


@pytest.mark.parametrize("url", ["ftp://h", "http://", "host:80", f"http://{KEY}@h", "http://h:x"])
def test_a_url_that_cannot_be_is_not_quoted(url: str) -> None:
    with pytest.raises(BadOption) as refusal:
        parse_target(url)
    assert KEY not in str(refusal.value)


def test_the_head_is_http() -> None:
    head = request_head(parse_target("http://[::1]:80/v1"), KEY)
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nhost: [::1]:80\r\n")
    assert head.endswith(b"\r\ncontent-length: ")
    assert f"authorization: Bearer {KEY}".encode() in head
