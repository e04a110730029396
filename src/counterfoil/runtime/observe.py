"""One event per request that a driver serves: tracing, metrics, logs and the crash tests hang on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from counterfoil.protocol.requests import Request

Watch = Callable[[Literal["before", "after"], str, Request[Any]], None]
"""Called with the moment, the run's id and the request. What it raises ends the flow there, as a crash would."""
