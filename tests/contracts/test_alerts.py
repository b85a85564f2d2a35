"""What billing tells an operator, byte by byte."""

from datetime import UTC, datetime

from contracts.alerts import BudgetThreshold, alert_headers, encode_alert

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def test_an_alert_is_told_as_its_contract_says() -> None:
    told = BudgetThreshold(
        tenant_id="acme",
        budget="month",
        key_id=None,
        period="2026-11",
        threshold_percent=80,
        spent_usd="0.000464400014",
        budget_usd="0.0005",
        raised_at=NOON,
    )
    assert encode_alert(told) == (
        b'{"type":"budget.threshold.v1","tenant_id":"acme","budget":"month","key_id":null,'
        b'"period":"2026-11","threshold_percent":80,"spent_usd":"0.000464400014",'
        b'"budget_usd":"0.0005","raised_at":"2026-11-29T12:00:00Z"}'
    )


def test_an_alerts_record_says_what_it_is() -> None:
    assert alert_headers("acme/month/2026-11/80", "acme") == [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"acme/month/2026-11/80"),
        ("ce_source", b"/billing"),
        ("ce_type", b"budget.threshold.v1"),
        ("ce_subject", b"acme"),
        ("content-type", b"application/json"),
    ]
