"""Transition tables."""

from counterfoil.protocol.states import Row, Table


def test_a_table_says_where_an_event_leads_and_that_others_lead_nowhere() -> None:
    table = Table("door", Row("open", "close", "closed", "it is shut"), Row("closed", "open", "open", "it is not"))
    assert table.name == "door"
    assert [row.meaning for row in table.rows] == ["it is shut", "it is not"]
    assert (table.next("open", "close"), table.next("closed", "open")) == ("closed", "open")
    assert table.next("open", "open") is None
    assert table.next("ajar", "close") is None
