"""A ledger file with something of everything in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from counterfoil import Runtime
from tests.cli.terminal import Terminal, fill


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def shop(url: str) -> Terminal:
    with Runtime(url) as runtime:
        fill(runtime)
    return Terminal(url)


@pytest.fixture
def change(url: str) -> Callable[..., Any]:
    """Run something with a runtime of the same ledger."""

    def changed(work: Callable[[Runtime], Any]) -> Any:
        with Runtime(url) as runtime:
            return work(runtime)

    return changed
