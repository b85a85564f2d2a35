"""``python -m billing.upgrade``: brings a ledger to this version, or makes it, and ends.

Exit status: 0 it is of this version, 1 it cannot be, 2 set up wrongly.
"""

import logging
import sys

from billing.errors import BillingError
from billing.ledger import Ledger
from billing.settings import PREFIX, UpgradeSettings
from contracts.environment import BadSettings, read_settings
from contracts.logs import configure_logging, log_bad_settings

logger = logging.getLogger(__name__)


def main() -> int:
    try:
        settings = read_settings(UpgradeSettings, PREFIX, {})
    except BadSettings as exc:
        log_bad_settings("billing", exc.faults)
        return 2
    configure_logging("billing", settings.log_level)
    try:
        Ledger(settings.ledger_url.get_secret_value()).close()
    except BillingError as exc:
        logger.critical("the ledger is not of this version", extra={"error": str(exc)})
        return 1
    logger.info("the ledger is of this version")
    return 0


if __name__ == "__main__":
    sys.exit(main())
