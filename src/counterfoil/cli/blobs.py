"""`counterfoil blobs`: put, get, ls, check, clean."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from counterfoil.cli.groups import Group
from counterfoil.cli.output import Column, document, line, say, table
from counterfoil.cli.text import escaped
from counterfoil.errors import UsageError
from counterfoil.outcomes import Accepted
from counterfoil.recipients.blobs.folder import Folder
from counterfoil.recipients.blobs.recipient import Blobs
from counterfoil.recipients.blobs.reference import DEFAULT_MEDIA_TYPE
from counterfoil.recipients.blobs.streams import PIECE_BYTES, Progress
from counterfoil.recipients.secret import Secret

VARIABLE: Final = "COUNTERFOIL_BLOBS"
_STORE: Final = f"A folder, or a URL: file:///srv/blobs. Or set {VARIABLE}."
_JOURNAL: Final = "COUNTERFOIL_BLOBS_JOURNAL"
_CREDENTIALS: Final = (Secret("env:AWS_ACCESS_KEY_ID"), Secret("env:AWS_SECRET_ACCESS_KEY"))
_FOUND: Final = 1


@click.group(cls=Group)
def blobs() -> None:
    """Store, read and check immutable blobs.

    A blob is named by its digest; the first digits are enough where no other blob begins so.
    """


def stored(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that all of these have, and the store as its first argument."""

    @click.option("--store", metavar="FOLDER", envvar=VARIABLE, help=_STORE)
    @click.option("--journal", metavar="FOLDER", envvar=_JOURNAL, help=f"For s3://: a folder. Or set {_JOURNAL}.")
    @click.option("--weak", type=click.Choice(["refuse", "verify"]), default="refuse", help="For s3://, see `doctor`.")
    @click.option("--json", "as_json", is_flag=True, help="Write JSON.")
    @click.pass_context
    def wrapped(
        context: click.Context, /, *, store: str | None, journal: str | None, weak: str, as_json: bool, **given: Any
    ) -> Any:
        if not store:
            raise UsageError("no store is named", hint=f"say --store FOLDER, or set {VARIABLE}")
        url = store if ":" in store.partition("/")[0] else Path(store).absolute().as_uri()
        as_json = as_json or bool(context.find_root().params.get("as_json"))
        blobs = Blobs(url, credentials=_CREDENTIALS, journal=journal, weak=weak)
        _present(blobs, made=context.info_name == "put")
        return function(blobs, as_json=as_json, **given)

    wrapped.__doc__, wrapped.__name__ = function.__doc__, function.__name__
    # What the command's own decorators left on it.
    wrapped.__click_params__ += getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return wrapped


@blobs.command()
@stored
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--media-type", default=DEFAULT_MEDIA_TYPE, show_default=True, help="What the bytes are.")
def put(store: Blobs, *, as_json: bool, file: str, media_type: str) -> None:
    """Store FILE (- for stdin) and write its reference, which is durable then."""
    size = None if file == "-" else Path(file).stat().st_size
    with _bar("put", size) as progress, store.writer(media_type=media_type, progress=progress) as writer:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb", buffering=0) as source:
            while piece := source.read(PIECE_BYTES):
                writer.write(piece)
        outcome = writer.seal()
    if not isinstance(outcome, Accepted):
        evidence = outcome.evidence
        raise click.ClickException(f"{type(outcome).__name__.lower()}: {evidence.kind} {evidence.details or ''}")
    if as_json:
        document({"reference": outcome.proof})
    else:
        line(_shown(outcome.proof))


@blobs.command()
@stored
@click.argument("digest")
@click.option("--output", "-o", type=click.Path(dir_okay=False), help="A file, made new; else stdout.")
@click.option("--start", type=click.IntRange(min=0), default=0, metavar="BYTE", help="The first byte.")
@click.option("--length", type=click.IntRange(min=0), metavar="BYTES", help="How many bytes.")
def get(store: Blobs, *, as_json: bool, digest: str, output: str | None, **part: Any) -> None:
    """Write a blob's bytes, each verified before it is written; --output appears when all of them are."""
    reference = _found(store, digest)
    # To a terminal the bytes themselves are written: no bar between them.
    with (
        _bar("get", reference["size"], shown=output is not None) as progress,
        store.reader(reference, progress=progress, **part) as reader,
        _sink(output) as sink,
    ):
        for piece in reader:
            sink.write(piece)
    if as_json and output is not None:
        document({"reference": reference})


@blobs.command()
@stored
@click.argument("digest", default="")
def ls(store: Blobs, *, as_json: bool, digest: str) -> None:
    """List the sealed blobs, or those whose digest begins with DIGEST."""
    found = list(store.references(digest))
    if as_json:
        document({"blobs": found})
        return
    table(
        [Column("digest"), Column("size", right=True), Column("media type")],
        [[each["digest"], str(each["size"]), escaped(each["media_type"])] for each in found],
    )
    say(f"{len(found)} blob{'' if len(found) == 1 else 's'}")


@blobs.command()
@stored
@click.argument("digest", default="")
@click.pass_context
def check(context: click.Context, store: Blobs, *, as_json: bool, digest: str) -> None:
    """Read all blobs, or those whose digest begins with DIGEST, and compare. Exit code 1 if one is damaged."""
    with _bar("check", None) as progress:
        found = list(store.check_all(digest, progress=progress))
    faulty = [each for each in found if not each.sound]
    if as_json:
        document({"checked": [each.reference | {"fault": each.fault} for each in found]})
    else:
        for each in faulty:
            line(f"{each.fault}  {each.reference['digest']}", style="bold red")
        say(f"{len(found)} checked, {len(faulty)} damaged")
    if faulty:
        context.exit(_FOUND)


@blobs.command()
@stored
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Leftovers at most.")
@click.option("--within", "within_s", type=click.FloatRange(0.001), default=30.0, show_default=True, metavar="SECONDS")
@click.pass_context
def clean(context: click.Context, store: Blobs, *, as_json: bool, limit: int, within_s: float) -> None:
    """Remove what killed processes left; what may still be on its way is left alone. Exit code 1 if some is left."""
    cleaned = store.clean(limit=limit, within_s=within_s)
    if as_json:
        names = ("removed", "bytes_removed", "in_flight", "left", "busy")
        document({name: getattr(cleaned, name) for name in names})
    elif cleaned.busy:
        line("somebody else is cleaning")
    else:
        gone = f"removed {cleaned.removed} ({cleaned.bytes_removed} bytes)"
        line(f"{gone}, {cleaned.in_flight} in flight, {cleaned.left} left")
    if cleaned.left:
        context.exit(_FOUND)


@blobs.command()
@stored
@click.pass_context
def doctor(context: click.Context, store: Blobs, *, as_json: bool) -> None:
    """Say what the store's guarantees rest on; exit code 1 if something is weak. A bucket is tried for it, once."""
    found = store.capabilities()
    weak = {name for name in ("create", "complete") if found.get(name, "atomic") != "atomic"}
    if as_json:
        document({"capabilities": found})
    else:
        for name, value in found.items():
            line(f"{name}: {value}", style="yellow" if name in weak else None)
        if weak:
            say("conditional requests cannot be relied on here: blobs are refused, or take --weak verify")
    if weak:
        context.exit(_FOUND)


def _present(blobs: Blobs, *, made: bool) -> None:
    """Check that a folder is there, before an empty listing would say that all is well."""
    if not isinstance(blobs.store, Folder):
        return
    path = blobs.store.path
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is no folder", hint="name the folder of a store")
    if not made and not path.exists():
        raise UsageError(f"there is no store at {path}", hint="is the path right? The first blob makes it")


def _found(store: Blobs, digest: str) -> dict[str, Any]:
    found = list(store.references(digest))
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no blob's digest begins with {digest}", hint="`counterfoil blobs ls` lists them")
    raise UsageError(f"{len(found)} blobs have a digest that begins with {digest}: {'; '.join(map(_shown, found[:5]))}")


def _shown(reference: dict[str, Any]) -> str:
    return f"{reference['digest']} {reference['size']} {escaped(reference['media_type'])}"


@contextmanager
def _sink(output: str | None) -> Generator[BinaryIO]:
    """Open what is written to: a file appears under its name when all of it is there."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    if path.exists():
        raise UsageError(f"{path} is there already")
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            file = part.open("xb")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
        with file:
            yield file
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _bar(what: str, total: int | None, *, shown: bool = True) -> Generator[Progress | None]:
    """Show how far it is, where stderr is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=total if of is None else of)
