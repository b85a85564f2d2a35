"""What is said of a topic that cannot be told."""

from collections.abc import Mapping
from typing import Any

import pytest

from billing.alert_topic import AlertTopic
from billing.errors import AlertTopicUnavailable, SourceUnavailable


def unreadable() -> Mapping[str, Any]:
    raise SourceUnavailable("kafka's certificates: No such file or directory")


def test_a_certificate_that_cannot_be_read_is_named() -> None:
    with pytest.raises(AlertTopicUnavailable, match="certificates: No such file"):
        AlertTopic(unreadable, "alerts").send("a", "t", b"{}")
