"""Whom a run loads, and as which tenants: what the options name, or the local fleet that runs."""

from pathlib import Path

from pandal.bench.options import (
    BenchOptions,
    ClientOptions,
    LoadOptions,
    Prices,
    SourceOptions,
    WorkloadOptions,
    check_client,
    check_load,
)
from pandal.bench.target import Target, parse_target
from pandal.bench.tenants import (
    Tenant,
    checked_key,
    read_key_file,
    read_tenants,
    single_tenant,
)
from pandal.credentials import load_or_create_credentials
from pandal.datadir import DataDir
from pandal.errors import BadOption
from pandal.fleet_record import running_fleet
from pandal.options import directory
from pandal.settings import CommandSettings, told_settings


def build_options(
    source: SourceOptions,
    workload: WorkloadOptions,
    load: LoadOptions,
    client: ClientOptions,
    prices: Prices | None,
    data_dir_option: Path | None,
) -> BenchOptions:
    """Checked, all but what a trace holds.  Raises BadOption."""
    check_load(load)
    check_client(client)
    settings = told_settings()
    data_dir = directory(data_dir_option)
    return BenchOptions(
        target=find_target(source, data_dir),
        tenants=find_tenants(source, settings, data_dir),
        workload=workload,
        load=load,
        client=client,
        prices=prices,
    )


def find_target(options: SourceOptions, data_dir: DataDir) -> Target:
    """Raises BadOption."""
    if options.url is not None:
        return parse_target(options.url)
    fleet = running_fleet(data_dir)
    if fleet is None:
        raise BadOption(f"--url is needed: no fleet runs on {data_dir.root}")
    return parse_target(fleet.gateway_url)


def find_tenants(
    options: SourceOptions, settings: CommandSettings, data_dir: DataDir
) -> tuple[Tenant, ...]:
    """Raises BadOption.  A server that asks for no key gets none."""
    if options.tenants_file is not None:
        if options.api_key_file is not None:
            raise BadOption("--api-key-file and --tenants exclude each other")
        return read_tenants(options.tenants_file, options.default_slo)
    return single_tenant(options.default_slo, _api_key(options, settings, data_dir))


def _api_key(options: SourceOptions, settings: CommandSettings, data_dir: DataDir) -> str | None:
    if options.api_key_file is not None:
        return read_key_file(options.api_key_file)
    if settings.bench_api_key is not None:
        return checked_key(settings.bench_api_key.get_secret_value(), "PANDAL_BENCH_API_KEY")
    if options.url is not None:
        return None
    return load_or_create_credentials(data_dir).demo_api_key
