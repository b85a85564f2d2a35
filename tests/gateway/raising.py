"""Code of ours that raises where nobody expects it, and who is told."""

import asyncio


def raise_index_error() -> None:
    raise IndexError("a defect")


def loop_failures() -> list[BaseException]:
    """From now on, what nobody has caught before the event loop did."""
    failures: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(context["exception"])
    )
    return failures
