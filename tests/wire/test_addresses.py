"""Which addresses need a grant by range: what no table of another library decides."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from counterfoil.recipients.http.addresses import special

pytestmark = pytest.mark.rule("H5")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:0:127.0.0.1", "loopback"),
        ("::127.0.0.1", "loopback"),
        ("64:ff9b::10.0.0.1", "private"),
        ("2002:a9fe:a9fe::1", "metadata"),
        ("fe80::1%eth0", "link-local"),
        ("::8.8.8.8", "reserved"),
        ("::ffff:0:8.8.8.8", "reserved"),
        ("1::1", "reserved"),
        ("200::1", "reserved"),
        ("4000::1", "reserved"),
        ("e000::1", "reserved"),
    ],
)
def test_a_special_address_is_known_in_each_of_its_forms(address: str, reason: str) -> None:
    assert special(ip_address(address)) == reason


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1", "2606:4700::1111", "2a00:1450::1"]
)
def test_a_public_address_needs_no_grant(address: str) -> None:
    assert special(ip_address(address)) is None
