"""Blobs where somebody looked for what could go wrong: answers that are cut, interrupts, cleaners that are fast."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Accepted, Blobs, Failed, RecipientError, Uncertain, UsageError
from counterfoil.recipients.blobs import folder, locks, syncing
from counterfoil.recipients.blobs.s3.journal import Journal
from counterfoil.recipients.blobs.s3.upload import Broken, Multipart
from tests.blobs.endpoints import Endpoint, Endpoints
from tests.blobs.s3_support import Meddler, bucket, client_of, keys, uploads
from tests.blobs.support import on_their_way, some_bytes


def store(blobs: Blobs, data: bytes) -> Any:
    with blobs.writer() as writer:
        writer.write(data)
        return writer.seal()


def journalled(path: Path) -> list[Path]:
    return sorted((path / "uploads").iterdir())


# --- in a folder


@pytest.mark.rule("K2")
def test_where_no_file_can_be_opened_a_writer_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    code = """
import errno, os, resource, sys
from counterfoil import Blobs
blobs = Blobs("file://" + sys.argv[1])
blobs.writer().abandon()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    blobs.writer()
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["EMFILE"]
    assert on_their_way(tmp_path) == []


@pytest.mark.rule("K1", "K2", "O2")
def test_what_was_interrupted_while_it_was_sealed_is_not_sealed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = Blobs(tmp_path.as_uri())

    def interrupted(*_args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder.Folder, "sync", interrupted)
    writer = blobs.writer()
    writer.write(b"renamed already")
    with pytest.raises(KeyboardInterrupt):
        writer.seal()
    monkeypatch.undo()
    with pytest.raises(UsageError) as caught:
        writer.seal()
    assert (caught.value.code, caught.value.effect_ran) == ("seal-interrupted", "unknown")
    assert blobs.check(blobs.put(b"renamed already").reference).sound


@pytest.mark.rule("K2")
def test_the_names_of_all_folders_that_were_made_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    really = syncing.sync_folder

    def sync_folder(path: Path) -> None:
        synced.append(Path(path))
        really(path)

    for module in (syncing, folder):
        monkeypatch.setattr(module, "sync_folder", sync_folder)
    store(Blobs((tmp_path / "a" / "b" / "blobs").as_uri()), b"deep below")
    made = {tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "blobs"}
    assert made <= set(synced)


@pytest.mark.rule("K5")
def test_a_leftover_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path.as_uri())
    store(blobs, b"makes the folders")
    (tmp_path / "writing" / "0" / "data").mkdir(parents=True)
    (tmp_path / "writing" / "1").mkdir()
    (tmp_path / "writing" / "1" / "data").write_bytes(b"left")
    cleaned = blobs.clean()
    assert (cleaned.removed, cleaned.bytes_removed, cleaned.left) == (1, 4, 1)


@pytest.mark.rule("K5")
@pytest.mark.parametrize("where", ["folder", "journal"])
def test_a_cleaner_that_is_faster_than_the_lock_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    really = locks.lock_folder
    swept: list[Path] = []

    def lock_folder(path: Path, *, wait: bool) -> int | None:
        if wait and not swept:
            swept.append(path)
            path.rmdir()
        return really(path, wait=wait)

    monkeypatch.setattr(locks, "lock_folder", lock_folder)
    if where == "folder":
        assert isinstance(store(Blobs(tmp_path.as_uri()), b"here"), Accepted)
    else:
        log = Journal(str(tmp_path)).begin("unique")
        log.write("create", key="k")
        assert [each["what"] for each in log.entries] == ["create"]
        log.remove()
    assert swept


# --- in a bucket


@pytest.fixture
def between(ministack: Endpoint) -> Iterator[Meddler]:
    with Meddler(ministack) as meddler:
        yield meddler


@pytest.fixture
def there(between: Meddler, tmp_path: Path) -> Blobs:
    return bucket(between.endpoint, tmp_path / "journal", settle_s=0.0)


@pytest.mark.rule("K4", "O2", "O5")
def test_a_record_whose_look_up_is_cut_is_not_called_damaged(there: Blobs, between: Meddler) -> None:
    lost: list[bool] = []

    def after(seen: Any) -> str | None:
        if seen.kind == "record":
            lost.append(True)
            return "lose"
        return "cut" if lost and seen.kind == "get" else None

    between.after = after
    outcome = store(there, b"there")
    assert isinstance(outcome, Uncertain), outcome
    between.after = None
    assert there.check(there.put(b"there").reference).sound


@pytest.mark.rule("K3", "K4")
@pytest.mark.parametrize("kind", ["complete", "record"])
def test_an_answer_that_is_cut_is_looked_into(there: Blobs, between: Meddler, kind: str) -> None:
    def after(seen: Any) -> str | None:
        if seen.kind == kind:
            seen.answer = seen.answer or b"<Error><Code>InternalError</Code></Error>"
            return "cut"
        return None

    between.after = after
    outcome = store(there, b"there")
    assert isinstance(outcome, Accepted)
    kinds = between.kinds()
    assert kinds.count(kind) == 1
    assert kinds[kinds.index(kind) + 1] in ("head", "get")
    between.after = None
    assert there.reader(outcome.proof).read() == b"there"


@pytest.mark.rule("K6")
def test_what_cannot_be_read_now_is_not_called_damaged(there: Blobs, between: Meddler) -> None:
    reference = store(there, some_bytes(1000)).proof

    def cut(seen: Any) -> str | None:
        return "cut" if "/data/" in seen.path and seen.kind == "get" else None

    between.after = cut
    with pytest.raises(RecipientError) as caught:
        there.check(reference)
    assert caught.value.code == "blob-unreadable"

    def unwell(seen: Any) -> None:
        if "/sealed/" in seen.path:
            seen.status, seen.answer = 503, b"<Error><Code>SlowDown</Code></Error>"

    between.after = unwell
    with pytest.raises(RecipientError) as caught:
        list(there.check_all())
    assert caught.value.code == "blob-unreadable"
    between.after = None
    assert [each.sound for each in there.check_all()] == [True]


@pytest.mark.rule("K1", "K6")
@pytest.mark.parametrize("name", ["ministack", "juicefs"])
def test_one_good_record_is_enough(endpoints: Endpoints, tmp_path: Path, name: str) -> None:
    blobs = bucket(endpoints.get(name), tmp_path / "journal")
    data = some_bytes(1000)
    reference = store(blobs, data).proof
    client = client_of(blobs)
    (key,) = [each for each in keys(blobs) if "/sealed/" in each]
    record = client.ask("GET", key).content
    at = key.rpartition("/")[0]
    assert client.ask("PUT", key, body=b"junk").done
    assert client.ask("PUT", f"{at}/{'0' * 32}", body=b"junk").done
    assert blobs.check(reference).fault == "bad-record"
    assert client.ask("PUT", f"{at}/{'f' * 32}", body=record).done
    assert blobs.reader(reference).read() == data


@pytest.mark.rule("K1", "K4")
def test_a_record_of_another_writer_counts_only_with_its_bytes(there: Blobs, between: Meddler) -> None:
    data = some_bytes(1000)
    client = client_of(there)

    def before(seen: Any) -> str | None:
        # Right before ours the same blob is recorded by somebody whose bytes are gone.
        if seen.kind == "record":
            path = seen.path.partition("?")[0].partition("/some%20prefix/")[2]
            gone = seen.body.replace(b"/data/", b"/gone/").replace(b'"unique":"', b'"unique":"0')
            seen.kind, between.before = "theirs", None
            assert client.ask("PUT", f"some prefix/{path}", body=gone).done
        return None

    between.before = before
    outcome = store(there, data)
    assert isinstance(outcome, Failed), outcome
    assert (outcome.evidence.kind, (outcome.evidence.details or {})["fault"]) == ("damaged", "truncated")


@pytest.mark.rule("K5")
def test_a_record_that_was_never_sent_keeps_no_bytes(
    there: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Multipart._ask

    def asked(self: Multipart, method: str, key: str, **what: Any) -> Any:
        if method == "PUT" and "/sealed/" in key:
            raise Broken("deadline")
        return ask(self, method, key, **what)

    monkeypatch.setattr(Multipart, "_ask", asked)
    outcome = store(there, b"too late")
    assert (type(outcome), outcome.evidence.kind) == (Failed, "deadline")
    assert len(keys(there)) == 1
    assert there.clean().in_flight == 1
    assert there.clean().removed == 1
    assert (keys(there), journalled(tmp_path / "journal")) == ([], [])


@pytest.mark.rule("K5")
def test_what_a_trial_could_not_remove_is_cleaned_up(ministack: Endpoint, between: Meddler, tmp_path: Path) -> None:
    direct = bucket(ministack, tmp_path / "direct")
    blobs = bucket(between.endpoint, tmp_path / "journal", client_of(direct).place.bucket, probed=False, settle_s=0.0)

    def before(seen: Any) -> str | None:
        return "drop" if seen.kind == "delete" else None

    between.before = before
    assert blobs.capabilities()["create"] == "atomic"
    assert keys(direct)
    between.before = None
    assert blobs.clean().in_flight == 1
    assert blobs.clean().removed == 1
    assert (keys(direct), uploads(direct), journalled(tmp_path / "journal")) == ([], [], [])


@pytest.mark.rule("K5")
def test_an_upload_is_found_on_the_second_page_of_a_listing(there: Blobs, between: Meddler, tmp_path: Path) -> None:
    log = Journal(str(tmp_path / "journal")).begin("0" * 32)
    key = f"some prefix/data/{'0' * 32}"
    log.write("create", key=key)
    # Killed before its id could be noted: only the listing knows it.
    assert client_of(there).ask("POST", key, params={"uploads": ""}).done
    log.close()

    def before(seen: Any) -> str | None:
        if seen.kind == "get" and "uploads=" in seen.path and "key-marker" not in seen.path:
            seen.status = 200
            seen.answer = (
                b"<ListMultipartUploadsResult><Upload><Key>!</Key><UploadId>another</UploadId></Upload>"
                b"<IsTruncated>true</IsTruncated><NextKeyMarker>!</NextKeyMarker></ListMultipartUploadsResult>"
            )
            return "invent"
        return None

    between.before = before
    assert there.clean().in_flight == 1
    assert there.clean().removed == 1
    between.before = None
    assert uploads(there) == []
