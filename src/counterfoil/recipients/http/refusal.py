"""What is refused before dispatch, by us."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A request that is not sent: `reason` is a slug, `details` further facts without payloads or secrets."""

    def __init__(self, reason: str, **details: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details
