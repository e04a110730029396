"""The export's format: one JSON object a line, a header first, then every record of every run.

A body that is sound is a JSON value that encodes to the same bytes again, so a complete export can be checked
like the ledger itself. What belongs to the user is redacted unless asked for, and the key of the
ledger's fingerprints always is; a redacted line says so and has no checksum left to check.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from counterfoil.errors import UsageError
from counterfoil.protocol import codec
from counterfoil.protocol.records import Record

FORMAT: Final = "counterfoil-export"
VERSION: Final = 1

_OF_THE_USER: Final = frozenset({"result", "proof", "payload", "args"})


def hidden(value: Any) -> str:
    """Return what stands for a redacted JSON value."""
    return f"‹redacted {len(codec.encode(value, what='the value'))} bytes›"  # noqa: RUF001 - no HTML tag


def redact(body: Any, *, shown: bool = False) -> Any:
    """Redact a record's body: results, proofs, payloads and arguments unless `shown`, a secret key always."""
    if not isinstance(body, dict):
        return body
    secret = {"key"} if shown else {"key", *_OF_THE_USER}
    if body.get("happened") is False and body.get("proof") is None:
        # What did not happen has no proof; a placeholder would say that there is one.
        secret -= {"proof"}
    found = {name: hidden(value) if name in secret else value for name, value in body.items()}
    if isinstance(found.get("outcome"), dict):
        found["outcome"] = redact(found["outcome"], shown=shown)
    return found


def header(namespace: str, *, at: float, shown: bool, software: str) -> dict[str, Any]:
    """Make the first line.

    Args:
        namespace: the scope of the run ids that follow.
        at: now, in seconds since 1970.
        shown: whether payloads are in it.
        software: the version that writes it.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "counterfoil": software,
        "namespace": namespace,
        "at": at,
        "payloads": "shown" if shown else "redacted",
    }


def line(namespace: str, run: str, record: Record, *, shown: bool) -> dict[str, Any]:
    """Make the line of a record; a body that is not canonical JSON is kept as base64, where it may be shown."""
    found = {
        "namespace": namespace,
        "run": run,
        **{name: getattr(record, name) for name in record.__struct_fields__ if name != "body"},
    }
    try:
        body = codec.decode(record.body)
        sound = codec.encode(body, what="the body") == record.body
    except Exception:  # noqa: BLE001 - a damaged record is exported as such
        body, sound = None, False
    if sound:
        found["body"] = redact(body, shown=shown)
        found["redacted"] = found["body"] != body
    else:
        found["damaged"] = base64.b64encode(record.body).decode() if shown else None
    return found


def parse_header(found: Any) -> str:
    """Check a header and return its namespace.

    Raises:
        UsageError: it is not a header, or that of a newer version.
    """
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("namespace"), str):
        raise UsageError("this is not an export of a ledger", hint="its first line is the header that `export` writes")
    if found.get("version") != VERSION:
        raise UsageError(f"this export has version {found.get('version')!r}", hint="upgrade counterfoil")
    return str(found["namespace"])


def parse_line(found: Any) -> tuple[str, str, Record]:
    """Read a line back: (namespace, run, record). A redacted record gets a checksum that fits what is left.

    Raises:
        UsageError: it is not a line of an export.
    """
    try:
        body = _body(found)
        values = {name: found[name] for name in Record.__struct_fields__ if name != "body"}
        record = msgspec.convert({**values, "body": body}, Record)
        namespace, run = str(found["namespace"]), str(found["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"this is not a line of an export ({type(error).__name__})") from error
    if found.get("redacted"):
        check = codec.checksum_of(record, namespace=namespace, run=run)
        record = msgspec.structs.replace(record, check=check)
    return namespace, run, record


def _body(found: Any) -> bytes:
    if "body" in found:
        return codec.encode(found["body"], what="the body")
    # Damaged and not shown: whatever stands for it does not fit the checksum either.
    return str(found["damaged"]).encode()
