"""A ledger that nobody has recorded anything in, and that takes no records, is looked at and says so otherwise."""

import pytest

from counterfoil import UNASKABLE, LedgerReadOnly, Runtime


@pytest.mark.rule("L14")
@pytest.mark.parametrize("request_", [None, {"n": 1}])
def test_a_database_that_vanished_from_beside_its_folder_refuses_effects(tmp_path, request_):
    url = f"sqlite:///{tmp_path}/lost.db"
    with Runtime(url) as runtime, runtime.run("order") as order:
        order.effect("charge", run=lambda: "ch_1", reconcile=UNASKABLE)
    for file in tmp_path.glob("lost.db*"):
        if file.is_file():
            file.unlink()
    sent = []
    with Runtime(url) as runtime:
        assert list(runtime.runs()) == []
        with runtime.run("order") as order, pytest.raises(LedgerReadOnly, match="went back in time") as refused:
            order.effect("charge", run=lambda: sent.append(1), reconcile=UNASKABLE, request=request_)
    assert refused.value.effect_ran == "no"
    assert sent == []
