"""`counterfoil events doctor`: what the promises of a stream of events rest on."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import click

from counterfoil.cli.groups import Group
from counterfoil.cli.output import Column, document, say, table
from counterfoil.cli.text import escaped
from counterfoil.errors import UsageError
from counterfoil.ledgers.jetstream import opening
from counterfoil.recipients.events.recipient import Events
from counterfoil.recipients.secret import Secret

_LOGIN: Final = "A token, or the user's password: env:NAME or file:PATH."
_MONITOR: Final = "A server's HTTP monitoring address, http://host:8222; one for each server."
_MEANS: Final = "a power loss can take events that were acknowledged"
_MEND: Final = "set jetstream { sync_interval: always } on every server, or use three replicas on separate power"
_SYNC: Final = {
    "always": ("ok", "sync-interval", "always: what is acknowledged is on the disk", ""),
    "lazy": ("warning", "sync-interval", f"not always: {_MEANS}", _MEND),
    "unknown": ("warning", "sync-interval", f"not known: {_MEANS}", "name every server's monitoring port by --monitor"),
}


@click.group(cls=Group)
def events() -> None:
    """Look at streams of events."""


@events.command()
@click.argument("url", metavar="URL")
@click.option("--user", metavar="NAME", help="Who to log in as.")
@click.option("--secret", metavar="WHERE", help=_LOGIN)
@click.option("--credentials", metavar="FILE", help="A file with NATS credentials.")
@click.option("--monitor", "monitors", multiple=True, metavar="URL", help=_MONITOR)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def doctor(context: click.Context, /, *, url: str, monitors: tuple[str, ...], as_json: bool, **login: Any) -> None:
    """Say what a stream's promises rest on, and what is weak: URL is nats://host:4222/STREAM.

    Nothing is published. The exit code is 1 when there is an error; warnings do not count.
    """
    servers, stream = _taken_apart(url)
    with Events(servers, stream=stream, auth=_auth(**login), credentials=login["credentials"]) as looked_at:
        found = [*looked_at.diagnose(), _SYNC[opening.sync_policy(servers, monitors)]]
    if as_json or context.find_root().params.get("as_json"):
        keys = ("level", "subject", "found", "mend")
        document({"findings": [dict(zip(keys, each, strict=True)) for each in found]})
    else:
        columns = [Column("level"), Column("subject"), Column("found", fold=12), Column("mend", fold=12)]
        table(columns, [[level, subject, escaped(what), mend] for level, subject, what, mend in found])
        weak = sum(level != "ok" for level, *_ in found)
        say(f"{weak} of {len(found)} weak")
    context.exit(1 if any(level == "error" for level, *_ in found) else 0)


def _taken_apart(url: str) -> tuple[list[str], str]:
    scheme, _, rest = url.partition("://")
    hosts, _, stream = rest.partition("/")
    if not hosts or not stream:
        raise UsageError("this names no stream", hint="write nats://host:4222/STREAM")
    if scheme not in ("nats", "tls"):
        raise UsageError("only streams of NATS can be looked at", hint="write nats://host:4222/STREAM")
    servers = [f"{scheme}://{host}" for host in hosts.split(",")]
    if any(urlsplit(server).username is not None for server in servers):
        raise UsageError("a login is not part of the address", hint="give it by --user and --secret")
    return servers, stream


def _auth(*, user: str | None, secret: str | None, credentials: str | None) -> Any:  # noqa: ARG001 - given elsewhere
    if secret is None:
        if user is not None:
            raise UsageError("a user has a password", hint="give it by --secret env:NAME or --secret file:PATH")
        return None
    return Secret(secret) if user is None else (user, Secret(secret))
