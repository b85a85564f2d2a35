"""One question through the real openai SDK."""

import openai


def client(url: str, api_key: str) -> openai.OpenAI:
    """The caller closes it."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0)


def ask(url: str, api_key: str, text: str) -> openai.types.CompletionUsage:
    with client(url, api_key) as sdk:
        answer = sdk.chat.completions.create(
            model="default", messages=[{"role": "user", "content": text}], max_tokens=5
        )
    assert answer.usage is not None
    return answer.usage


def answers(url: str, api_key: str) -> bool:
    try:
        ask(url, api_key, "three words here")
    except openai.APIError:
        return False
    return True
