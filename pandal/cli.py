"""The ``pandal`` command line: options in, exit codes and lines for people out.

Commands are imported when they run: ``pandal --version`` needs no service installed.
"""

import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated

import typer

from pandal.bench.commands import bench_app
from pandal.billing_commands import (
    MONTH_HELP,
    LedgerUrlOption,
    audit,
    billing_app,
    books_at,
    prices_app,
    usage,
)
from pandal.doctor.command import doctor
from pandal.errors import PandalError
from pandal.explain import explain
from pandal.key_commands import keys_app
from pandal.options import DataDirOption, JsonOption, directory
from pandal.plan import DEFAULT_MODEL
from pandal.planner.command import plan
from pandal.policy_commands import policy_app
from pandal.screen import Screen, SteadyConsole, say
from pandal.settings import told_settings, unread_variables
from pandal.simulation.command import simulate
from pandal.top.command import top
from replica.engine.messages import KvCacheDtype, Precision

app = typer.Typer(
    name="pandal",
    rich_markup_mode="markdown",
    help="An LLM gateway and the fleet behind it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(plan)
app.command()(simulate)
app.command()(explain)
app.command()(doctor)
app.command()(top)
app.command()(audit)
app.command()(usage)
app.add_typer(billing_app, name="billing")
app.add_typer(prices_app, name="prices")
app.add_typer(keys_app, name="keys")
app.add_typer(policy_app, name="policy")
app.add_typer(bench_app, name="bench")

PrecisionOption = Annotated[
    Precision, typer.Option(help="What is multiplied with what; only exact rounds nothing.")
]
KvOption = Annotated[KvCacheDtype, typer.Option(help="What keys and values are kept as.")]


def run() -> None:
    """Exit codes: 0 done, 1 could not be done, 2 wrong usage, 128 + signal when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app()
    except PandalError as exc:
        say(f"pandal: {exc}", sys.stderr)
        sys.exit(exc.exit_code)
    except UnicodeEncodeError:  # bytes of the shell's that are no text
        say("pandal: expected arguments of text in UTF-8", sys.stderr)
        sys.exit(2)
    except OSError as exc:  # the machine refuses: no space, no permission, no memory
        say(f"pandal: {exc}", sys.stderr)
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pandal {version('pandal')}")
        raise typer.Exit


@app.callback()
def pandal(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """An LLM gateway and the fleet behind it."""
    for line in unread_variables():
        say(f"pandal: {line}", sys.stderr)


@app.command()
def up(
    model: Annotated[
        str, typer.Option(help="Name, .gguf file or Hugging Face folder.")
    ] = DEFAULT_MODEL,
    replicas: Annotated[int, typer.Option(help="Model servers to start.")] = 1,
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FOLDER of a LoRA adapter of the model; may be repeated."),
    ] = None,
    autoscale: Annotated[
        int | None, typer.Option(help="Up to this many, as demand asks.", show_default="off")
    ] = None,
    port: Annotated[int, typer.Option(help="Of the gateway, on 127.0.0.1.")] = 8080,
    precision: PrecisionOption = Precision.EXACT,
    kv: KvOption = KvCacheDtype.FLOAT32,
    data_dir: DataDirOption = None,
    once: Annotated[bool, typer.Option("--once", help="Show one request and stop.")] = False,
    dev_replica: Annotated[
        list[str] | None,
        typer.Option(help="URL of a running OpenAI-compatible server, used instead of own ones."),
    ] = None,
) -> None:
    """Start the whole system on this machine, show one request, and serve until Ctrl-C."""
    from pandal.installation import adapter_folders, check_installation, check_options
    from pandal.plan import UpOptions

    settings = told_settings()
    options = UpOptions(
        model=model,
        num_replicas=replicas,
        precision=precision,
        kv_cache_dtype=kv,
        port=port,
        data_dir=directory(data_dir),
        is_once=once,
        dev_replica_urls=tuple(dev_replica or ()),
        kafka_bootstrap=settings.kafka_bootstrap,
        kafka_access=settings,
        model_cache=settings.model_cache,
        adapters=adapter_folders(adapter or ()),
        autoscale_to=autoscale,
    )
    check_options(options)
    check_installation(options)
    from pandal.launch import start_up

    raise typer.Exit(start_up(options, Screen(SteadyConsole(), SteadyConsole(stderr=True))))


@app.command("compile")
def precompile(
    model: Annotated[
        str, typer.Option(help="Name, .gguf file or Hugging Face folder.")
    ] = DEFAULT_MODEL,
    precision: PrecisionOption = Precision.EXACT,
    kv: KvOption = KvCacheDtype.FLOAT32,
) -> None:
    """Compile a model's kernels now, so that its first start need not."""
    from pandal.installation import require_extras

    require_extras(("replica",))
    from pandal.precompile import compile_kernels

    compile_kernels(
        model,
        precision=precision,
        kv_cache_dtype=kv,
        model_cache=told_settings().model_cache,
        screen=Screen(SteadyConsole(), SteadyConsole(stderr=True)),
    )


@app.command()
def bill(
    tenant: Annotated[str, typer.Argument()],
    month: Annotated[
        str | None, typer.Option(help=MONTH_HELP, show_default="the current one")
    ] = None,
    ledger_url: LedgerUrlOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a tenant has used in a month and what it costs, from the ledger.

    The month is of the tenant's time zone, and its requests are those that used tokens: 'pandal
    usage' counts all, in days of UTC, and knows no credits.
    """
    from pandal.installation import require_extras

    require_extras(("billing",))
    from pandal.bill import read_statement, show_statement

    found = read_statement(books_at(data_dir, ledger_url), tenant, month, datetime.now(UTC))
    if as_json:
        say(found.to_json().decode())
    else:
        show_statement(SteadyConsole(), found)
