"""Ready to paste: the same request by curl and by the openai SDK."""


def curl(*, base_url: str, api_key: str, model: str) -> str:
    return (
        f"curl {base_url}/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {api_key}' \\\n"
        "  -H 'Content-Type: application/json' \\\n"
        f'  -d \'{{"model": "{model}", "messages": '
        '[{"role": "user", "content": "Hello!"}]}\''
    )


def openai_sdk(*, base_url: str, api_key: str, model: str) -> str:
    return (
        "from openai import OpenAI\n"
        "\n"
        "client = OpenAI(\n"
        f'    base_url="{base_url}",\n'
        f'    api_key="{api_key}",\n'
        ")\n"
        "answer = client.chat.completions.create(\n"
        f'    model="{model}", messages=[{{"role": "user", "content": "Hello!"}}]\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )
