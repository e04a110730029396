"""Blobs in a folder: sealed and readable, or invisible, whatever happens; and nothing is read that was not sealed."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from counterfoil import (
    Accepted,
    BlobDamaged,
    BlobMissing,
    Blobs,
    Failed,
    Rejected,
    UsageError,
)
from counterfoil.recipients.blobs import behind, folder, locks, pieces, staged, syncing
from tests.blobs.support import MIB, data_of, killed_at, on_their_way, some_bytes
from tests.servers.starting import until
from tests.support import PATIENCE_S, Gate

RULE_PARTS = ("K",)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root: Path) -> Blobs:
    return Blobs(f"file://{root}")


def sealed(blobs: Blobs, data: bytes, **more: Any) -> dict[str, Any]:
    with blobs.writer(**more) as writer:
        writer.write(data)
        outcome = writer.seal()
    assert isinstance(outcome, Accepted), outcome
    return dict(outcome.proof)


# --- K1


@pytest.mark.rule("K1")
@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 17])
def test_a_sealed_blob_is_called_by_its_digest_size_and_media_type_and_read_back(blobs: Blobs, size: int) -> None:
    data = some_bytes(size)
    with blobs.writer(size=size, media_type="image/png") as writer:
        for at in range(0, size, 100_003):
            writer.write(data[at : at + 100_003])
        assert list(blobs.references()) == []
        outcome = writer.seal()
    expected = {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": size, "media_type": "image/png"}
    assert isinstance(outcome, Accepted)
    assert outcome.proof == expected
    assert outcome.evidence.promises == ("durable", "immutable")
    with blobs.reader(expected) as reader:
        assert b"".join(reader) == data
    assert blobs.check(expected).sound
    assert list(blobs.references()) == [expected]


@pytest.mark.rule("K1")
def test_a_blob_that_is_not_sealed_has_no_reference_and_leaves_nothing(blobs: Blobs, root: Path) -> None:
    with blobs.writer() as writer:
        writer.write(b"never sealed")
        assert len(on_their_way(root)) == 1
    assert on_their_way(root) == []
    assert list(blobs.references()) == []
    with pytest.raises(UsageError, match="abandoned"):
        writer.write(b"more")
    assert writer.seal() == Rejected(writer.seal().evidence)


@pytest.mark.rule("K1")
def test_what_is_sealed_does_not_change(blobs: Blobs) -> None:
    with blobs.writer() as writer:
        writer.write(b"once")
        first = writer.seal()
        assert writer.seal() is first
        with pytest.raises(UsageError, match="sealed"):
            writer.write(b" more")
    assert isinstance(first, Accepted)
    assert blobs.reader(first.proof).read() == b"once"


@pytest.mark.rule("K1")
def test_the_same_bytes_are_the_same_blob_and_another_media_type_is_another(blobs: Blobs, root: Path) -> None:
    first = sealed(blobs, b"twice", media_type="text/plain")
    inode = data_of(root, first).stat().st_ino
    with blobs.writer(media_type="text/plain") as writer:
        writer.write(b"twice")
        again = writer.seal()
    assert isinstance(again, Accepted)
    assert again.proof == first
    assert again.evidence.details is not None
    assert again.evidence.details["already"] is True
    assert data_of(root, first).stat().st_ino == inode
    other = sealed(blobs, b"twice", media_type="text/html")
    assert {found["media_type"] for found in blobs.references()} == {"text/plain", "text/html"}
    assert other != first
    assert on_their_way(root) == []


@pytest.mark.rule("K1")
@pytest.mark.parametrize(
    ("announced", "kind"),
    [({"size": 5}, "wrong-size"), ({"digest": "sha256:" + "0" * 64}, "wrong-digest")],
)
def test_a_blob_that_is_not_what_was_announced_is_not_sealed(
    blobs: Blobs, root: Path, announced: dict[str, Any], kind: str
) -> None:
    with blobs.writer(**announced) as writer:
        writer.write(b"four")
        outcome = writer.seal()
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == kind
    assert list(blobs.references()) == []
    assert on_their_way(root) == []


def test_more_than_was_announced_is_refused_at_once(blobs: Blobs) -> None:
    with blobs.writer(size=3) as writer, pytest.raises(UsageError, match="3 bytes were announced"):
        writer.write(b"four")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("blobs", "file:///folder"),
        ("file:relative", "absolute"),
        ("file:///", "absolute"),
        ("file://host/folder", "this machine"),
        ("file:///folder?x=1", "no.* options|has options"),
        ("s3://bucket/prefix", "journal"),
        (5, "URL"),
    ],
)
def test_a_url_that_names_no_folder_is_refused(url: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Blobs(url)


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"digest": "sha256:abc", "size": 1, "media_type": "a/b"},
        {"digest": "sha256:" + "A" * 64, "size": 1, "media_type": "a/b"},
        {"digest": "sha256:" + "a" * 64, "size": -1, "media_type": "a/b"},
        {"digest": "sha256:" + "a" * 64, "size": True, "media_type": "a/b"},
        {"digest": "sha256:" + "a" * 64, "size": 1, "media_type": "a/b\n"},
        {"digest": "sha256:" + "a" * 64, "size": 1, "media_type": "../a"},
        {"digest": "sha256:" + "a" * 64, "size": 1, "media_type": "a/b", "more": 1},
    ],
)
def test_what_is_no_reference_is_refused(blobs: Blobs, given: Any) -> None:
    with pytest.raises(UsageError):
        blobs.reader(given)
    with pytest.raises(UsageError):
        blobs.check(given)


# --- K2


@pytest.mark.rule("K2")
def test_everything_is_durable_before_the_rename_and_the_folders_before_the_reference(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def name(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def sync_data(descriptor: int) -> None:
        said.append(f"sync {name(descriptor)}")
        syncing.sync_data(descriptor)

    def sync_folder(path: Path) -> None:
        said.append(f"sync {Path(path).relative_to(root.parent).parts[1:2] or Path(path).name}")
        syncing.sync_folder(path)

    rename = Path.rename

    def renamed(self: Path, target: Path) -> Path:
        said.append("rename")
        return rename(self, target)

    sealed(blobs, b"first, so that the folders are there")
    for module in (staged, folder):
        monkeypatch.setattr(module, "sync_folder", sync_folder)
    for module in (staged, behind):
        monkeypatch.setattr(module, "sync_data", sync_data)
    monkeypatch.setattr(Path, "rename", renamed)
    sealed(blobs, b"second")
    at = said.index("rename")
    before, after = said[:at], said[at + 1 :]
    # The record is made of what was read back of the data; it and its folder are one commit of the file system.
    assert before[0] == "sync data"
    assert sorted(before[1:]) == ["sync ('writing',)", "sync record"]
    assert sorted(after) == ["sync ('sealed',)", "sync ('writing',)"]


@pytest.mark.rule("K2", "K5")
def test_killed_at_every_call_of_the_system_a_blob_is_sealed_or_invisible(blobs: Blobs, root: Path) -> None:
    data = some_bytes(MIB + 5)

    def work() -> None:
        sealed(Blobs(f"file://{root}"), data)

    number = visible = invisible = 0
    while killed_at(number, work):
        found = list(blobs.references())
        if found:
            (reference,) = found
            assert blobs.reader(reference).read() == data
            visible += 1
        else:
            invisible += 1
        left = on_their_way(root)
        cleaned = blobs.clean()
        assert cleaned.removed == len(left) <= 1
        assert cleaned.in_flight == cleaned.left == 0
        assert on_their_way(root) == []
        shutil.rmtree(root, ignore_errors=True)
        number += 1
    assert invisible > 30
    assert visible > 3
    assert [blobs.check(reference).sound for reference in blobs.references()] == [True]


@pytest.mark.rule("K2")
def test_of_writers_at_once_one_blob_comes_and_all_of_them_are_told_so(blobs: Blobs, root: Path) -> None:
    data = some_bytes(50_000)
    writers = [blobs.writer() for _ in range(8)]
    for writer in writers:
        writer.write(data)
    outcomes: list[Any] = []
    threads = [threading.Thread(target=lambda w=writer: outcomes.append(w.seal())) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert all(isinstance(outcome, Accepted) for outcome in outcomes)
    assert sum(not outcome.evidence.details["already"] for outcome in outcomes) == 1
    assert len(list(blobs.references())) == 1
    assert on_their_way(root) == []


@pytest.mark.rule("K2")
def test_what_is_there_is_not_replaced_even_if_it_is_damaged(blobs: Blobs, root: Path) -> None:
    reference = sealed(blobs, b"good")
    data_of(root, reference).write_bytes(b"baad")
    with blobs.writer() as writer:
        writer.write(b"good")
        outcome = writer.seal()
    assert isinstance(outcome, Failed)
    assert outcome.evidence.kind == "damaged"
    assert data_of(root, reference).read_bytes() == b"baad"


@pytest.mark.rule("K2", "O1")
@pytest.mark.parametrize(
    ("what", "code", "kind"),
    [
        ("sync_data", errno.EIO, "Rejected not-stored"),
        ("data sync", errno.EIO, "Rejected not-stored"),
        ("sync_folder", errno.EIO, "Rejected not-stored"),
        ("rename", errno.ENOSPC, "Failed refused"),
        ("rename", errno.EIO, "Uncertain not-known-to-be-sealed"),
        ("rename", errno.ENOENT, "Uncertain not-known-to-be-sealed"),
        ("last sync", errno.EIO, "Uncertain not-known-to-be-durable"),
    ],
)
def test_an_error_is_called_what_it_proves(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch, what: str, code: int, kind: str
) -> None:
    def fails(*_args: Any) -> Any:
        raise OSError(code, os.strerror(code))

    writer = blobs.writer()
    writer.write(b"data")
    if what == "rename":
        monkeypatch.setattr(Path, "rename", fails)
    elif what == "data sync":
        monkeypatch.setattr(behind, "sync_data", fails)
    elif what == "last sync":
        monkeypatch.setattr(folder.Folder, "sync", fails)
    else:
        monkeypatch.setattr(staged, what, fails)
    outcome = writer.seal()
    assert f"{type(outcome).__name__} {outcome.evidence.kind}" == kind
    visible = list(blobs.references())
    assert bool(visible) is (what == "last sync")
    assert on_their_way(root) == []


def reading_held(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Hold back what reads back what was written."""
    gate = Gate()
    really = behind.WriteBehind._read_back

    def read_back(self: behind.WriteBehind, window: behind.Window) -> None:
        gate.stop()
        really(self, window)

    monkeypatch.setattr(behind.WriteBehind, "_read_back", read_back)
    return gate


@pytest.mark.rule("K2")
def test_an_error_of_the_disk_while_more_was_written_is_not_forgotten(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = threading.Event()
    really = behind.WriteBehind._read_back

    def read_back(self: behind.WriteBehind, window: behind.Window) -> None:
        if not failing.is_set():
            failing.set()
            raise OSError(errno.EIO, "told once")
        really(self, window)

    monkeypatch.setattr(behind.WriteBehind, "_read_back", read_back)
    with blobs.writer() as writer:
        writer.write(some_bytes(behind.AHEAD_BYTES))
        assert failing.wait(PATIENCE_S)
        writer.write(some_bytes(behind.AHEAD_BYTES))
        outcome = writer.seal()
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "not-stored"
    assert list(blobs.references()) == []
    assert on_their_way(root) == []


def test_a_full_disk_is_told_at_once_and_nothing_is_sealed(blobs: Blobs, root: Path) -> None:
    # A limit on the size of files, in a process of its own: the system refuses as a full disk would.
    code = f"""
import resource, signal
from counterfoil import Blobs, RecipientError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
writer = Blobs("file://{root}").writer()
try:
    for _ in range(10):
        writer.write(b"x" * 50_000)
except RecipientError as error:
    print(error.code, error.effect_ran)
print(type(writer.seal()).__name__, writer.seal().evidence.kind)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["blob-not-written no", "Rejected not-stored"]
    assert list(blobs.references()) == []
    assert on_their_way(root) == []


@pytest.mark.rule("K2")
def test_bytes_that_changed_on_the_way_are_found_before_the_blob_is_seen(blobs: Blobs, root: Path) -> None:
    with blobs.writer() as writer:
        writer.write(b"as written")
        (name,) = on_their_way(root)
        (root / "writing" / name / "data").write_bytes(b"as changed")
        outcome = writer.seal()
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "wrong-digest"


@pytest.mark.rule("K2")
@pytest.mark.parametrize("at", [0, behind.AHEAD_BYTES + 7, 3 * behind.AHEAD_BYTES])
def test_bytes_that_changed_are_found_wherever_they_are(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    gate = reading_held(monkeypatch)
    with blobs.writer() as writer:
        writer.write(some_bytes(behind.AHEAD_BYTES))
        writer.write(some_bytes(2 * behind.AHEAD_BYTES, seed=1))
        writer.write(b"the end")
        (name,) = on_their_way(root)
        with (root / "writing" / name / "data").open("r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        gate.open()
        outcome = writer.seal()
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "wrong-digest"


@pytest.mark.rule("K1", "K2")
@pytest.mark.parametrize(
    "sizes", [[MIB] * 9, [behind.AHEAD_BYTES * 3 + 1], [1, pieces.LITTLE_BYTES, 10, 10, 3 * MIB, 0, 7] * 2]
)
def test_a_buffer_may_be_used_again_as_soon_as_it_is_written(blobs: Blobs, sizes: list[int]) -> None:
    whole = bytearray()
    buffer = bytearray(max(sizes))
    with blobs.writer() as writer:
        for number, size in enumerate(sizes):
            buffer[:size] = some_bytes(size, seed=number)
            whole += buffer[:size]
            with memoryview(buffer)[:size] as view:
                writer.write(view)
            buffer[:size] = bytes(size)
        outcome = writer.seal()
    assert isinstance(outcome, Accepted)
    assert outcome.proof["digest"] == f"sha256:{hashlib.sha256(whole).hexdigest()}"
    assert blobs.reader(outcome.proof).read() == whole


@pytest.mark.rule("K2")
def test_bytes_that_the_file_lost_while_it_was_synced_are_found(
    blobs: Blobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = reading_held(monkeypatch)

    def sync_data(descriptor: int) -> None:
        os.ftruncate(descriptor, behind.AHEAD_BYTES)
        gate.open()

    monkeypatch.setattr(behind, "sync_data", sync_data)
    with blobs.writer() as writer:
        writer.write(some_bytes(2 * behind.AHEAD_BYTES))
        outcome = writer.seal()
    assert isinstance(outcome, Rejected)
    assert outcome.evidence.kind == "wrong-digest"
    assert on_their_way(root) == []


def test_whoever_writes_faster_than_it_is_read_back_waits_for_that(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = reading_held(monkeypatch)
    windows = 4 * behind.WINDOWS_MAX
    with blobs.writer() as writer:
        data = some_bytes(behind.AHEAD_BYTES)
        thread = threading.Thread(target=lambda: [writer.write(data) for _ in range(windows)])
        thread.start()
        until(lambda: writer.written >= behind.WINDOWS_MAX * len(data), failing=lambda: f"{writer.written} written")
        # Were nothing in its way, it would be at its end before long.
        thread.join(0.3)
        assert writer.written <= (behind.WINDOWS_MAX + 1) * len(data)
        gate.open()
        thread.join(PATIENCE_S)
        outcome = writer.seal()
    assert isinstance(outcome, Accepted)
    assert outcome.proof["size"] == windows * len(data)


# --- K5


@pytest.mark.rule("K5")
def test_what_is_being_written_is_never_cleaned_up(blobs: Blobs, root: Path) -> None:
    other = Blobs(f"file://{root}")
    with blobs.writer() as writer:
        writer.write(b"still ")
        cleaned = other.clean()
        assert (cleaned.removed, cleaned.in_flight) == (0, 1)
        writer.write(b"here")
        outcome = writer.seal()
    assert isinstance(outcome, Accepted)
    assert other.reader(outcome.proof).read() == b"still here"


@pytest.mark.rule("K5")
def test_cleaning_keeps_within_its_bounds_and_says_what_is_left(blobs: Blobs, root: Path) -> None:
    sealed(blobs, b"makes the folders")
    for number in range(5):
        (root / "writing" / f"left{number}").mkdir()
        (root / "writing" / f"left{number}" / "data").write_bytes(b"x" * 10)
    cleaned = blobs.clean(limit=2)
    assert (cleaned.removed, cleaned.bytes_removed, cleaned.left) == (2, 20, 3)
    assert blobs.clean(within_s=1e-9).left == 3
    assert blobs.clean().removed == 3
    assert len(list(blobs.references())) == 1


@pytest.mark.rule("K5")
def test_one_cleans_at_a_time_and_what_is_not_ours_is_left(blobs: Blobs, root: Path) -> None:
    assert blobs.clean().busy is False
    sealed(blobs, b"makes the folders")
    (root / "writing" / "foreign").mkdir()
    (root / "writing" / "foreign" / "somebody's").write_bytes(b"keep me")
    (root / "writing" / "a file").write_bytes(b"keep me")
    held = locks.lock_folder(root / "writing", wait=False)
    assert held is not None
    assert blobs.clean().busy is True
    os.close(held)
    cleaned = blobs.clean()
    assert (cleaned.removed, cleaned.left, cleaned.busy) == (0, 1, False)
    assert (root / "writing" / "foreign" / "somebody's").read_bytes() == b"keep me"
    assert (root / "writing" / "a file").read_bytes() == b"keep me"


@pytest.mark.parametrize("given", [{"limit": 0}, {"limit": True}, {"within_s": 0}, {"within_s": float("inf")}])
def test_bounds_that_bound_nothing_are_refused(blobs: Blobs, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        blobs.clean(**given)


# --- K6


@pytest.mark.rule("K6")
def test_a_part_is_read_and_verified_without_the_rest(blobs: Blobs, root: Path) -> None:
    data = some_bytes(5 * MIB + 100)
    reference = sealed(blobs, data)
    for start, length in [(0, 10), (MIB - 5, 10), (2 * MIB, MIB), (5 * MIB + 90, 50), (len(data), 5), (7, None)]:
        with blobs.reader(reference, start=start, length=length) as reader:
            end = len(data) if length is None else start + length
            assert reader.size == len(data[start:end])
            assert reader.read() == data[start:end]
            assert reader.read() == b""
    with pytest.raises(UsageError, match="begins at"):
        blobs.reader(reference, start=len(data) + 1)
    with data_of(root, reference).open("r+b") as file:
        file.seek(4 * MIB)
        file.write(b"!")
    assert blobs.reader(reference, start=0, length=4 * MIB).read() == data[: 4 * MIB]
    reader = blobs.reader(reference, start=3 * MIB, length=2 * MIB)
    assert reader.read(MIB) == data[3 * MIB : 4 * MIB]
    with pytest.raises(BlobDamaged) as caught:
        reader.read(1)
    assert caught.value.fault == "wrong-digest"


def other_bytes(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    path = data_of(root, one)
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def truncated(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    os.truncate(data_of(root, one), one["size"] - 1)


def longer(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    with data_of(root, one).open("ab") as file:
        file.write(b"+")


def swapped_whole(root: Path, one: dict[str, Any], two: dict[str, Any]) -> None:
    for name in ("data", "record"):
        shutil.copy(data_of(root, two).parent / name, data_of(root, one).parent / "new")
        (data_of(root, one).parent / "new").rename(data_of(root, one).parent / name)


def swapped_data(root: Path, one: dict[str, Any], two: dict[str, Any]) -> None:
    data_of(root, one).write_bytes(data_of(root, two).read_bytes()[: one["size"]])


def forged(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    """Other bytes with a record that fits them: only the digest of the whole knows."""
    from counterfoil.recipients.blobs.chunks import Chunks, Record
    from counterfoil.recipients.blobs.reference import reference

    chunks = Chunks()
    chunks.add(memoryview(b"z" * one["size"]))
    data_of(root, one).write_bytes(b"z" * one["size"])
    (data_of(root, one).parent / "record").unlink()
    (data_of(root, one).parent / "record").write_bytes(Record(reference(one), chunks.finished()).encoded())


def bad_table(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    path = data_of(root, one).parent / "record"
    body = path.read_bytes()
    path.unlink()
    path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))


def no_record(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    (data_of(root, one).parent / "record").unlink()


def no_data(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    data_of(root, one).unlink()


def gone(root: Path, one: dict[str, Any], _two: dict[str, Any]) -> None:
    shutil.rmtree(data_of(root, one).parent)


@pytest.mark.rule("K6")
@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (other_bytes, "wrong-digest"),
        (truncated, "truncated"),
        (longer, "wrong-digest"),
        (swapped_whole, "swapped"),
        (swapped_data, "wrong-digest"),
        (forged, "wrong-digest"),
        (bad_table, "bad-record"),
        (no_record, "bad-record"),
        (no_data, "truncated"),
        (gone, "missing"),
    ],
)
def test_whatever_was_done_to_a_blob_is_found_and_nothing_false_is_returned(
    blobs: Blobs, root: Path, harm: Any, fault: str
) -> None:
    data = some_bytes(2 * MIB + 7)
    one, two = sealed(blobs, data), sealed(blobs, some_bytes(3 * MIB, seed=1))
    harm(root, one, two)
    got: list[bytes] = []
    with pytest.raises((BlobDamaged, BlobMissing), match=one["digest"]):
        got.extend(blobs.reader(one))
    if harm is not forged:
        assert data.startswith(b"".join(got))
    assert len(b"".join(got)) < len(data)
    assert blobs.check(one).fault == fault
    assert blobs.check(two).sound


@pytest.mark.rule("K6")
def test_a_blob_that_is_cut_while_it_is_read_is_found(blobs: Blobs, root: Path) -> None:
    reference = sealed(blobs, some_bytes(2 * MIB))
    reader = blobs.reader(reference)
    reader.read(MIB)
    os.truncate(data_of(root, reference), MIB + 10)
    with pytest.raises(BlobDamaged) as caught:
        reader.read()
    assert caught.value.fault == "truncated"


# --- memory, progress, processes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_blob(root: Path) -> None:
    code = f"""
from pathlib import Path
from counterfoil import Blobs
blobs = Blobs("file://{root}")
with blobs.writer() as writer:
    for number in range(96):
        writer.write(bytes([number]) * (1 << 20))
    reference = writer.seal().proof
with blobs.reader(reference) as reader:
    size = sum(len(piece) for piece in reader)
# Not ru_maxrss: it begins with what the process that forked this one had.
status = Path("/proc/self/status").read_text()
print(size, int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, peak_mib = map(int, done.stdout.split())
    assert size == 96 * MIB
    assert peak_mib < 64


def test_progress_is_told_while_writing_and_reading(blobs: Blobs) -> None:
    told: list[tuple[int, int | None]] = []
    data = some_bytes(2 * MIB + 1)
    with blobs.writer(size=len(data), progress=lambda done, of: told.append((done, of))) as writer:
        writer.write(data[:MIB])
        writer.write(data[MIB:])
        outcome = writer.seal()
    assert told == [(MIB, len(data)), (len(data), len(data))]
    assert isinstance(outcome, Accepted)
    told.clear()
    list(blobs.reader(outcome.proof, start=1, progress=lambda done, of: told.append((done, of))))
    assert told[-1] == (2 * MIB, 2 * MIB)


def test_a_writer_does_not_work_in_a_forked_child_and_the_parent_is_unharmed(blobs: Blobs, root: Path) -> None:
    writer = blobs.writer()
    writer.write(b"parent's")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                writer.write(b"child's")
            except UsageError as error:
                status = 0 if error.code == "forked-writer" else 2
            writer.abandon()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    outcome = writer.seal()
    assert isinstance(outcome, Accepted)
    assert blobs.reader(outcome.proof).read() == b"parent's"


def test_errors_can_be_pickled_by_whoever_does() -> None:
    import copy

    error = copy.copy(BlobDamaged("b", fault="truncated"))
    assert (error.fault, error.code) == ("truncated", "blob-damaged")
