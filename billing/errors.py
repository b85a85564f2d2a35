"""What can go wrong in billing.

BillingError
├── PriceBookInvalid     the price book cannot be used as it stands
├── TermsInvalid         what was agreed with tenants cannot be read as it stands
├── InvoiceRefused       a period that cannot be closed now, or an adjustment that makes no sense
├── RequestInvalid       a month or a ledger address that means nothing
├── LedgerUnavailable    the database cannot be used now; nothing was posted
│   ├── LedgerMissing    there is no ledger yet
│   └── LedgerMigrated   another version has made it its own: this process can only end
├── HasLateReports       of recovered events: nobody else may post meanwhile; nothing was posted
├── OffsetConflict       another consumer has moved the source; carries where to
├── QuotaStoreUnavailable  the gateways' quota store does not answer
├── AlertTopicUnavailable  the brokers do not take an alert now
├── WebhookFailed        whoever is to be alerted cannot be reached now
│   └── AlertRefused     it answered, and did not take this one
├── SourceUnavailable    the source cannot be read now; nothing is lost by waiting
└── SourceLost           records are gone that were never posted; a person must decide
"""


class BillingError(Exception):
    """Root of the tree; never raised itself."""


class PriceBookInvalid(BillingError):
    pass


class TermsInvalid(BillingError):
    pass


class InvoiceRefused(BillingError):
    pass


class RequestInvalid(BillingError, ValueError):
    pass


class LedgerUnavailable(BillingError):
    pass


class LedgerMissing(LedgerUnavailable):
    pass


class LedgerMigrated(LedgerUnavailable):
    pass


class HasLateReports(BillingError):
    pass


class OffsetConflict(BillingError):
    """``stored_offset`` is where the ledger stands; None: it knows nothing of the source."""

    def __init__(
        self, source_id: str, *, expected_offset: int | None, stored_offset: int | None
    ) -> None:
        super().__init__(
            f"{source_id}: expected to post at {expected_offset}, ledger stands at {stored_offset}"
        )
        self.source_id = source_id
        self.stored_offset = stored_offset


class QuotaStoreUnavailable(BillingError):
    pass


class AlertTopicUnavailable(BillingError):
    pass


class WebhookFailed(BillingError):
    pass


class AlertRefused(WebhookFailed):
    pass


class SourceUnavailable(BillingError):
    pass


class SourceLost(BillingError):
    pass
