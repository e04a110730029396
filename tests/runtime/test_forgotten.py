"""What nobody closed: a collection comes at any point of any thread, whatever lock that thread holds."""

import gc
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import counterfoil
from counterfoil import Outbox
from counterfoil.ledgers import urls
from counterfoil.ledgers.sqlite import presence
from counterfoil.threads import when_collected

SOURCE = Path(counterfoil.__file__).parent


class Owner:
    """Something with a thread, a socket or a file, in a cycle as such things are."""

    def __init__(self) -> None:
        self.itself = self


def collect_holding(lock: Any) -> bool:
    """Collect garbage in a thread that holds a lock; return whether that came to an end."""

    def work() -> None:
        with lock:
            gc.collect()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_what_a_collected_object_leaves_is_done_elsewhere_whatever_the_collecting_thread_holds():
    lock, done = threading.Lock(), threading.Event()

    def close() -> None:
        with lock:
            done.set()

    when_collected(Owner(), close)
    assert collect_holding(lock)
    assert done.wait(60)


def test_what_fails_while_it_is_closed_is_logged_and_the_next_is_closed_all_the_same(caplog):
    done = threading.Event()

    def fail() -> None:
        raise OSError("no route")

    when_collected(Owner(), fail)
    when_collected(Owner(), done.set)
    gc.collect()
    assert done.wait(60)
    assert "could not be closed" in caplog.text


def test_a_ledger_that_is_collected_while_another_is_being_opened_hangs_nobody(tmp_path):
    where = f"sqlite:///{tmp_path}/app.db"
    forgotten = [urls.parse(where).open()]
    forgotten.append(forgotten)  # type: ignore[arg-type]
    file = presence.identity(f"{tmp_path}/app.db")
    assert [one.file for one in presence._present if one.file == file] == [file]
    del forgotten
    assert collect_holding(presence._lock)
    assert [one for one in presence._present if one.file == file] == []


def test_a_forgotten_outbox_lets_go_of_its_file(tmp_path, eventually_free):
    outbox = Outbox(f"sqlite:///{tmp_path}/app.db")
    outbox.migrate()
    del outbox
    eventually_free(f"{tmp_path}/app.db")


@pytest.fixture
def eventually_free():
    def wait(path: str) -> None:
        file, freed = presence.identity(path), threading.Event()
        for _ in range(1200):
            gc.collect()
            if all(one.file != file for one in presence._present):
                return
            freed.wait(0.05)
        raise AssertionError(f"{path} is still in use")

    return wait


def test_nothing_else_is_run_by_a_collection():
    """`Submissions` is the exception: its queue is made for it."""
    with_finalizers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"weakref\.finalize\(|def __del__|^from weakref import .*finalize", path.read_text(), re.MULTILINE)
    }
    assert with_finalizers == {"threads.py", "ledgers/submissions.py"}
