"""Addresses of providers: as people have them, and in words where they are wrong."""

import pytest

from gateway.provider_url import provider_url


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com:443"),
        ("https://api.openai.com/v1/", "https://api.openai.com:443"),
        ("https://api.openai.com", "https://api.openai.com:443"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com:443/openai"),
        ("http://10.0.0.5", "http://10.0.0.5:80"),
        ("http://10.0.0.5:8000/base", "http://10.0.0.5:8000/base"),
        ("http://10.0.0.5:8000/xv1", "http://10.0.0.5:8000/xv1"),
    ],
)
def test_an_sdks_address_is_one(given: str, kept: str) -> None:
    assert provider_url(given) == kept
    assert provider_url(kept) == kept


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("api.openai.com/v1", "begins with https://"),
        ("ftp://api.openai.com", "begins with https://"),
        ("https:///v1", "host's name"),
        ("https://[::1]:443", "host's name"),
        ("https://api openai.com", "host's name"),
        ("https://api.openai.com/v1\r\nx: y", "host's name"),
        ("https://sk-secret@api.openai.com", "api_key"),
        ("https://api.openai.com?key=sk-secret", "without ?"),
        ("https://api.openai.com:99999", "port"),
        ("https://api.openai.com:0", "port"),
        ("https://api.openai.com:sk-secret", "port"),
    ],
)
def test_a_wrong_one_is_told_in_words_without_it(given: str, words: str) -> None:
    with pytest.raises(ValueError, match="expected") as failure:
        provider_url(given)
    assert words in str(failure.value)
    assert "sk-secret" not in str(failure.value)
    assert "^" not in str(failure.value)
