"""Blobs beside what they rest on: writing and syncing the same bytes, reading them, and boto3 with one attempt.

What is counted is MiB. Each blob begins with bytes of its own, so that none is there already, and what was written is
removed again outside the time that is taken.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.measure import Contender, Opened, Slice, Watch, watching
from benchmarks.tables import raced, show
from counterfoil import Accepted, Blobs, Secret
from tests.blobs.endpoints import KNOWN, SERVERS
from tests.blobs.s3_support import HOST, SECRET
from tests.servers.finding import Missing

MIB = 1 << 20
LOCAL_MIB = (1, 16, 64, 256)
BUCKET_MIB = (1, 64)
ENDPOINTS = ("ministack", "juicefs")
PEAK_MIB = 2048
PIECES = [os.urandom(MIB) for _ in range(8)]
_MEMORY = """
import sys
from pathlib import Path
from counterfoil import Blobs, Secret
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
url, mib, access, secret, journal, weak = sys.argv[1:]
more = {"credentials": (access, Secret(f"file:{secret}")), "journal": journal, "weak": weak} if access else {}
blobs = Blobs(url, **more)
before = peak()
with blobs.writer() as writer:
    for number in range(int(mib)):
        writer.write(bytes([number % 256]) * (1 << 20))
    outcome = writer.seal()
put = peak()
with blobs.reader(outcome.proof) as reader:
    assert sum(len(each) for each in reader) == int(mib) << 20
print(before, put, peak())
"""


def parts() -> dict[str, Callable[..., dict[str, Any]]]:
    """The parts, by title."""
    return {
        **{f"blobs in a folder, {mib} MiB each, MiB": folder_part(mib) for mib in LOCAL_MIB},
        "blobs read, 64 MiB each, MiB": read_part(64),
        **{f"blobs in a bucket ({name}), {mib} MiB each, MiB": bucket_part(name, mib) for name in ENDPOINTS
           for mib in BUCKET_MIB},
        "blobs, memory": remembered,
    }  # fmt: skip


def pieces(mib: int) -> Iterator[bytes]:
    """The bytes of a blob that nobody has seen before."""
    yield os.urandom(16)
    for number in range(mib):
        yield PIECES[number % len(PIECES)]


# --- in a folder


def folder_part(mib: int) -> Callable[..., dict[str, Any]]:
    """Sealing beside writing and syncing the same bytes."""

    def part(folder: str, *, hurried: bool) -> dict[str, Any]:
        ours = "counterfoil, sealed"
        contenders = [
            Contender("write, fdatasync", written(mib, named=False), mib),
            Contender("write, fsync, rename, fsync the folder", written(mib, named=True), mib),
            Contender(ours, sealed(mib), mib),
        ]
        return raced(contenders, folder, base="writing", aims={ours: 0.8}, rounds=5 if hurried else 20, slice_s=0.05)

    return part


def written(mib: int, *, named: bool) -> Opened:
    """Write and sync, with nothing between; `named`: and give it its name so that it lasts."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        here = Path(folder)
        here.mkdir()

        def one(number: int) -> None:
            descriptor = os.open(here / f"{number}.part", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            for piece in pieces(mib):
                os.write(descriptor, piece)
            (os.fsync if named else os.fdatasync)(descriptor)
            os.close(descriptor)
            if named:
                (here / f"{number}.part").rename(here / str(number))
                above = os.open(here, os.O_RDONLY)
                os.fsync(above)
                os.close(above)

        def slice_(count: int) -> Watch:
            with watching() as watch:
                for number in range(count // mib):
                    one(number)
            removed(here.iterdir())
            return watch

        yield slice_

    return opened


def sealed(mib: int) -> Opened:
    """Seal in a folder that has been in use: its folders are there."""

    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        here = Path(folder).absolute() / "store"
        blobs = Blobs(here.as_uri())
        put(blobs, b"makes the folders")
        for number in range(256):
            (here / "sealed" / f"{number:02x}").mkdir(exist_ok=True)

        def slice_(count: int) -> Watch:
            with watching() as watch:
                for _ in range(count // mib):
                    put(blobs, *pieces(mib))
            removed((here / "sealed").glob("*/*"))
            return watch

        yield slice_

    return opened


def put(blobs: Blobs, *parts: bytes) -> dict[str, Any]:
    """Store a blob."""
    with blobs.writer() as writer:
        for each in parts:
            writer.write(each)
        outcome = writer.seal()
    assert isinstance(outcome, Accepted), outcome
    return dict(outcome.proof)


def removed(paths: Iterable[Path]) -> None:
    for each in list(paths):
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


# --- reading


def read_part(mib: int) -> Callable[..., dict[str, Any]]:
    """Verified reading beside reading, of what the system has in its memory."""

    def part(folder: str, *, hurried: bool) -> dict[str, Any]:
        contenders = [
            Contender("read, SHA-256 of the whole", read(mib), mib),
            Contender("counterfoil, each chunk and the whole", verified(mib), mib),
        ]
        return raced(contenders, folder, base="that", aims={}, rounds=5 if hurried else 20, slice_s=0.05)

    return part


def read(mib: int) -> Opened:
    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        path = Path(folder)
        path.write_bytes(b"".join(pieces(mib)))

        def slice_(count: int) -> None:
            for _ in range(count // mib):
                whole = sha256()
                with path.open("rb", buffering=0) as file:
                    while piece := file.read(MIB):
                        whole.update(piece)

        yield slice_

    return opened


def verified(mib: int) -> Opened:
    @contextmanager
    def opened(folder: str) -> Iterator[Slice]:
        blobs = Blobs(Path(folder).absolute().as_uri())
        reference = put(blobs, *pieces(mib))

        def slice_(count: int) -> None:
            for _ in range(count // mib):
                with blobs.reader(reference) as reader:
                    for _piece in reader:
                        pass

        yield slice_

    return opened


# --- in a bucket


@contextmanager
def endpoint(name: str) -> Iterator[tuple[Any, str]]:
    """A server of its own with an empty bucket, and the folder of the secret and the journal."""
    folder = tempfile.mkdtemp(prefix="counterfoil-bench-s3-")
    (Path(folder) / "server").mkdir()
    (Path(folder) / "secret").write_text(SECRET, encoding="utf-8")
    server = SERVERS[name](Path(folder) / "server")
    try:
        blobs = in_bucket(server, folder, name)
        assert blobs.store.client.ask("PUT", "").status == 200  # type: ignore[attr-defined]
        blobs.capabilities()
        yield server, folder
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def in_bucket(server: Any, folder: str, name: str) -> Blobs:
    return Blobs(
        f"s3://bench/ours?endpoint=http://{HOST}:{server.port}",
        credentials=(server.access, Secret(f"file:{folder}/secret")),
        journal=f"{folder}/journal",
        weak=weak(name),
    )


def weak(name: str) -> str:
    return "refuse" if KNOWN[name].strong else "verify"


def bucket_part(name: str, mib: int) -> Callable[..., dict[str, Any]]:
    """Putting a blob beside uploading the same bytes by boto3."""

    def part(folder: str, *, hurried: bool) -> dict[str, Any]:
        try:
            with endpoint(name) as (server, here):
                ours = "counterfoil, put" if KNOWN[name].strong else "counterfoil, put and read back"
                contenders = [
                    Contender("boto3 upload_fileobj, one attempt", uploaded(server, mib), mib),
                    Contender(ours, stored(server, here, name=name, mib=mib), mib),
                ]
                rounds = 4 if hurried else 12
                return raced(contenders, folder, base="boto3", aims={ours: 0.8}, rounds=rounds, slice_s=0.2)
        except Missing as error:
            print(f"  did not run: {error}")
            return {}

    return part


def uploaded(server: Any, mib: int) -> Opened:
    """`upload_fileobj` with its own threads and parts, and no second attempt."""

    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        import boto3  # type: ignore[import-not-found]
        from botocore.config import Config  # type: ignore[import-untyped]

        client = boto3.client(
            "s3",
            endpoint_url=f"http://{HOST}:{server.port}",
            aws_access_key_id=server.access,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

        def slice_(count: int) -> Watch:
            contents = [b"".join(pieces(mib)) for _ in range(count // mib)]
            with watching() as watch:
                for number, content in enumerate(contents):
                    client.upload_fileobj(io.BytesIO(content), "bench", f"theirs/{number}")
            for number in range(len(contents)):
                client.delete_object(Bucket="bench", Key=f"theirs/{number}")
            return watch

        yield slice_

    return opened


def stored(server: Any, here: str, *, name: str, mib: int) -> Opened:
    @contextmanager
    def opened(_folder: str) -> Iterator[Slice]:
        blobs = in_bucket(server, here, name)

        def slice_(count: int) -> Watch:
            contents = [list(pieces(mib)) for _ in range(count // mib)]
            with watching() as watch:
                for content in contents:
                    put(blobs, *content)
            for key in blobs.store.keys(""):  # type: ignore[attr-defined]
                blobs.store.client.ask("DELETE", key)  # type: ignore[attr-defined]
            return watch

        yield slice_

    return opened


# --- memory


def remembered(folder: str, *, hurried: bool) -> dict[str, Any]:
    """What a process holds at most that puts one large blob, and then reads it."""
    mib = 256 if hurried else PEAK_MIB
    found = {"folder": _peak(Path(folder).absolute().as_uri(), mib)}
    for name in ENDPOINTS:
        try:
            with endpoint(name) as (server, here):
                url = in_bucket(server, here, name).url
                found[name] = _peak(url, mib, server.access, f"{here}/secret", f"{here}/journal", weak(name))
        except Missing as error:
            print(f"  did not run: {error}")
    for place, (before, stored_, read_) in found.items():
        show(f"{place}: before, put of {mib} MiB, read, peak MiB", f"{before}, {stored_}, {read_}", "under 64")
    return found


def _peak(url: str, mib: int, *where: str) -> tuple[int, ...]:
    given = where or ("", "", "", "")
    command = [sys.executable, "-c", _MEMORY, url, str(mib), *given]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(map(int, said.split()))
