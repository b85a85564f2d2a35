"""Grafana's dashboards: panels over the metrics that our services export, by their names there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from contracts import metrics as m

_COLUMNS: Final = 24
_WIDTH, _HEIGHT = 8, 7
_RATE: Final = "$__rate_interval"
_HERE: Final = '{namespace="$namespace"}'


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str  # Grafana's name of it
    queries: Mapping[str, str]  # expression by legend


def rate(name: str, labels: str = _HERE) -> str:
    return f"rate({name}{labels}[{_RATE}])"


def total(expression: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def quantile(of: float, histogram: str) -> str:
    return f"histogram_quantile({of}, {total(rate(f'{histogram}_bucket'), 'le')})"


def _quantiles(histogram: str) -> Mapping[str, str]:
    return {f"p{100 * q:.0f}": quantile(q, histogram) for q in (0.5, 0.95, 0.99)}


_FAILED: Final = '{namespace="$namespace", status=~"5.."}'
_HIT_RATIO: Final = f"{total(rate(m.PREFIX_CACHE_HITS))} / {total(rate(m.PREFIX_CACHE_QUERIES))}"

GATEWAY: Final = (
    Panel("Requests by status", "reqps", {"{{status}}": total(rate(m.GATEWAY_REQUESTS), "status")}),
    Panel(
        "Answered with 5xx",
        "percentunit",
        {
            "ratio": f"{total(rate(m.GATEWAY_REQUESTS, _FAILED))} / "
            f"{total(rate(m.GATEWAY_REQUESTS))}"
        },
    ),
    Panel("Refusals", "reqps", {"{{reason}}": total(rate(m.GATEWAY_REFUSALS), "reason")}),
    Panel("Time to first token", "s", _quantiles(m.GATEWAY_TTFT)),
    Panel("Error of its forecast", "percentunit", _quantiles(m.GATEWAY_TTFT_ERROR)),
    Panel("Tokens", "short", {"{{class}}": total(rate(m.GATEWAY_TOKENS), "class")}),
    Panel(
        "In flight and waiting",
        "short",
        {
            "in flight": total(m.GATEWAY_ACTIVE_REQUESTS + _HERE),
            "waiting": total(m.GATEWAY_WAITING_REQUESTS + _HERE),
        },
    ),
    Panel(
        "Usage events",
        "cps",
        {
            "spooled": total(rate(m.GATEWAY_SPOOLED_EVENTS)),
            "shipped": total(rate(m.GATEWAY_SHIPPED_EVENTS)),
        },
    ),
    Panel("Routes by reason", "reqps", {"{{reason}}": total(rate(m.GATEWAY_ROUTES), "reason")}),
    Panel(
        "Requests of tenants that are named",
        "reqps",
        {"{{tenant}} {{status}}": total(rate(m.GATEWAY_TENANT_REQUESTS), "tenant", "status")},
    ),
    Panel(
        "Tokens of tenants that are named",
        "short",
        {"{{tenant}} {{class}}": total(rate(m.GATEWAY_TENANT_TOKENS), "tenant", "class")},
    ),
    Panel(
        "Streams that a replica broke",
        "cps",
        {"broken": total(rate(m.GATEWAY_STREAM_BREAKS))},
    ),
    Panel("From a break to the next token", "s", _quantiles(m.GATEWAY_STREAM_RECOVERY)),
    Panel(
        "Policy",
        "short",
        {
            "gateways with a bad one stored": total(m.GATEWAY_POLICY_REFUSED + _HERE),
            "gateways without its store": total(m.GATEWAY_POLICY_LOST + _HERE),
            "refused in shadow by {{rule}}, a second": total(
                rate(m.GATEWAY_SHADOW_REFUSALS), "rule"
            ),
        },
    ),
    Panel(
        "Quota store",
        "short",
        {
            "gateways without it": total(m.GATEWAY_QUOTA_LOST + _HERE),
            "admitted by shares, a second": total(rate(m.GATEWAY_QUOTA_LOCAL)),
        },
    ),
)

REPLICAS: Final = (
    Panel(
        "Running and waiting",
        "short",
        {
            "running": total(m.NUM_REQUESTS_RUNNING + _HERE),
            "waiting": total(m.NUM_REQUESTS_WAITING + _HERE),
        },
    ),
    Panel("KV cache", "percentunit", {"{{pod}}": m.KV_CACHE_USAGE + _HERE}),
    Panel("Preemptions", "cps", {"{{pod}}": total(rate(m.NUM_PREEMPTIONS), "pod")}),
    Panel("Prefix cache: tokens found", "percentunit", {"ratio": _HIT_RATIO}),
    Panel(
        "Tokens",
        "short",
        {"prompt": total(rate(m.PROMPT_TOKENS)), "generated": total(rate(m.GENERATION_TOKENS))},
    ),
    Panel("Time to first token", "s", _quantiles(m.TIME_TO_FIRST_TOKEN)),
    Panel("Between two tokens", "s", _quantiles(m.INTER_TOKEN_LATENCY)),
    Panel("Whole request", "s", _quantiles(m.E2E_REQUEST_LATENCY)),
    Panel("In the queue", "s", _quantiles(m.REQUEST_QUEUE_TIME)),
    Panel(
        "Ends",
        "reqps",
        {"{{finished_reason}}": total(rate(m.REQUEST_SUCCESS), "finished_reason")},
    ),
    Panel(
        "Defects and losses",
        "short",
        {
            "blocks unaccounted for": total(m.BLOCK_AUDIT_FAULTS + _HERE),
            "journal records lost": total(m.JOURNAL_LOST + _HERE),
        },
    ),
)

AUTOSCALER: Final = (
    Panel(
        "Wanted",
        "short",
        {"{{pool}} {{variant}}": f"max by (pool, variant) ({m.AUTOSCALER_WANTED}{_HERE})"},
    ),
    Panel(
        "Replicas by phase",
        "short",
        {"{{pool}} {{phase}}": f"max by (pool, variant, phase) ({m.AUTOSCALER_REPLICAS}{_HERE})"},
    ),
    Panel(
        "Reasons",
        "cps",
        {"{{pool}} {{reason}}": total(rate(m.AUTOSCALER_REASONS), "pool", "reason")},
    ),
    Panel("Leaders", "short", {"leaders": total(m.AUTOSCALER_LEADS + _HERE)}),
    Panel("Conflicts", "short", {"{{pool}}": f"max by (pool) ({m.AUTOSCALER_CONFLICT}{_HERE})"}),
)

BOARDS: Final[Mapping[str, tuple[str, Sequence[Panel]]]] = {
    "gateway": ("Pandal: gateway", GATEWAY),
    "replicas": ("Pandal: replicas", REPLICAS),
    "autoscaler": ("Pandal: autoscaler", AUTOSCALER),
}


def dashboard_files() -> Mapping[str, str]:
    """By name in the chart's folder."""
    return {
        f"files/dashboards/{name}.json": _json(_board(name, title, panels))
        for name, (title, panels) in BOARDS.items()
    }


def _board(name: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    return {
        "uid": f"pandal-{name}",
        "title": title,
        "tags": ["pandal"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_DATA_SOURCE, _NAMESPACE]},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


_DATA_SOURCE: Final = {"name": "datasource", "type": "datasource", "query": "prometheus"}
_NAMESPACE: Final = {
    "name": "namespace",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "query": f"label_values({m.GATEWAY_REQUESTS}, namespace)",
    "refresh": 2,
}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    in_a_row = _COLUMNS // _WIDTH
    row, column = divmod(number, in_a_row)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
            for place, (legend, expression) in enumerate(panel.queries.items())
        ],
    }


def _json(board: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(board), indent=2).decode() + "\n"
