"""`counterfoil audit-client`: how often a client of the user's really sends, and what it says about it."""

from __future__ import annotations

from typing import Any

import click

from counterfoil.cli.output import Column, document, say, table
from counterfoil.cli.text import escaped


@click.command("audit-client")
@click.argument("client", metavar="MODULE:FUNCTION")
@click.option("--method", metavar="METHOD", help="Given to the function as method=….")
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this case; several times for several.")
@click.option("--http2", is_flag=True, help="The cases of HTTP/2 too, for a client that speaks it to http:// URLs.")
@click.option("--limit", "limit_s", type=float, default=30.0, show_default=True, help="Seconds for each case.")
@click.option("--at-once", type=click.IntRange(1), default=1, show_default=True, help="Cases at the same time.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def audit_client(
    *, client: str, method: str | None, names: tuple[str, ...], http2: bool, limit_s: float, at_once: int, as_json: bool
) -> None:
    """Let an HTTP client of yours meet servers and networks that misbehave, and count what it sends.

    FUNCTION takes a URL and makes one request, blocking or asynchronous; MODULE may be a file. It is called once
    for each case, with a server of its own on the loopback interface. The exit code is 1 if a request that is
    neither GET, HEAD, OPTIONS nor TRACE was sent more than once.
    """
    # The testing room is needed by this command only.
    from counterfoil.testing import audit, targets
    from counterfoil.testing.peers.catalogue import chosen

    _, function = targets.find(client, what="function", example="shop.clients:order")
    found = audit.audit(function, method=method, cases=chosen(names, http2=http2), limit_s=limit_s, at_once=at_once)
    if as_json or click.get_current_context().find_root().params.get("as_json"):
        document(found.shape())
    else:
        _tell(found)
    click.get_current_context().exit(0 if found.ok else 1)


def _tell(found: Any) -> None:
    columns = [
        Column("the peer", fold=30),
        Column("sent", right=True),
        Column("connections", right=True),
        Column("the client", fold=20),
        Column("what can be known"),
    ]
    rows = [
        (
            each.says,
            str(each.sent),
            str(each.connections),
            escaped(each.problem or each.raised or each.ended),
            each.known,
        )
        for each in found.findings
    ]
    table(columns, rows)
    twice = sum(each.sent > 1 for each in found.findings)
    untried = sum(each.problem is not None for each in found.findings)
    say(f"cases: {len(found.findings)}; sent more than once: {twice}; could not be tried: {untried}")
