"""Grants: deny by default, exact about where an operation goes, and only ever narrower."""

from typing import Any

import pytest

from counterfoil import Grant, UsageError

pytestmark = pytest.mark.rule("B1")


def grant(*targets: str, **options: Any) -> Grant:
    return Grant("http", **{"operations": ("GET", "POST"), "targets": targets, **options})


COVERED = [
    ("https://api.example.com", "https://api.example.com"),
    ("https://api.example.com", "https://api.example.com/any/thing?q=../x#y"),
    ("https://api.example.com", "HTTPS://API.Example.COM/x"),
    ("https://api.example.com", "https://api.example.com:443/x"),
    ("https://api.example.com:443", "https://api.example.com/x"),
    ("http://api.example.com:80/", "http://api.example.com"),
    ("https://api.example.com:8443", "https://api.example.com:8443/"),
    ("https://api.example.com/", "https://api.example.com?x"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/charges?page=2"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/a..b/.c/c."),
    ("http://[::1]:8080", "http://[0:0:0:0:0:0:0:1]:8080/x"),
    ("http://127.0.0.1:8080", "http://127.0.0.1:8080/x"),
    ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example/x"),
]
NOT_COVERED = [
    ("https://api.example.com", "http://api.example.com/"),
    ("https://api.example.com", "https://api.example.com:444/"),
    ("https://api.example.com", "https://api.example.com.evil.org/"),
    ("https://api.example.com", "https://evil.org/https://api.example.com/"),
    ("https://api.example.com", "https://sub.api.example.com/"),
    ("https://api.example.com", "https://api.example.com./"),
    ("https://api.example.com", "https://user@api.example.com/"),
    ("https://api.example.com", "https://api.example.com@evil.org/"),
    ("https://api.example.com", "https://user:pass@api.example.com/"),
    ("https://api.example.com", "https://api.example.com\\@evil.org/"),
    ("https://api.example.com", "https:/api.example.com/"),
    ("https://api.example.com", "//api.example.com/"),
    ("https://api.example.com", "/v1/"),
    ("https://api.example.com", " https://api.example.com/"),
    ("https://api.example.com", "https://api.example.com/\r\nHost: evil.org"),
    ("https://api.example.com", "https://api.example.com:/"),
    ("https://api.example.com", "https://api.example.com:0443443/"),
    ("https://api.example.com", "https://api.example.com:99999/"),
    ("https://api.example.com", "https://api%2eexample.com/"),
    ("https://api.example.com", "https://\uff41pi.example.com/"),
    ("https://xn--bcher-kva.example", "https://bücher.example/"),
    ("https://api.example.com/v1/", "https://api.example.com/v1"),
    ("https://api.example.com/v1/", "https://api.example.com/v10/"),
    ("https://api.example.com/v1/", "https://api.example.com/V1/"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/../admin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/.."),
    ("https://api.example.com/v1/", "https://api.example.com/v1/./x"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/%2e%2e/admin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/.%2E/admin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/%252e%252e/admin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/..;x=1/admin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/x%2f..%2fadmin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/x%252Fadmin"),
    ("https://api.example.com/v1/", "https://api.example.com/v1/x%5c..%5cadmin"),
    ("https://api.example.com/v1/", "https://api.example.com/%761/x"),
    ("https://api.example.com/v1/", "https://api.example.com//v1/x"),
    ("http://127.0.0.1:8080", "http://2130706433:8080/"),
    ("http://127.0.0.1:8080", "http://0x7f000001:8080/"),
    ("http://127.0.0.1:8080", "http://0177.0.0.1:8080/"),
    ("http://127.0.0.1:8080", "http://127.1:8080/"),
    ("http://127.0.0.1:8080", "http://[::ffff:127.0.0.1]:8080/"),
]


@pytest.mark.parametrize(("granted", "asked"), COVERED)
def test_a_grant_covers_its_origin_and_what_is_below_its_prefix(granted: str, asked: str) -> None:
    assert grant(granted).allows("http", "GET", asked)


@pytest.mark.parametrize(("granted", "asked"), NOT_COVERED)
def test_what_is_elsewhere_or_can_be_read_in_two_ways_is_not_covered(granted: str, asked: str) -> None:
    assert not grant(granted).allows("http", "GET", asked)


def test_a_grant_is_for_its_recipient_its_verbs_and_its_targets_alone() -> None:
    one = grant("https://a.example")
    assert one.allows("http", "POST", "https://a.example/")
    assert not one.allows("HTTP", "POST", "https://a.example/")
    assert not one.allows("http", "post", "https://a.example/")
    assert not one.allows("http", "DELETE", "https://a.example/")
    assert not grant().allows("http", "GET", "https://a.example/")
    assert not grant("https://a.example", operations=()).allows("http", "GET", "https://a.example/")
    assert Grant("mail", operations=("send",)).allows("mail", "send", None)


@pytest.mark.parametrize(
    "target",
    [
        "api.example.com",
        "https://api.example.com/v1",
        "https://*.example.com",
        "https://user@api.example.com",
        "https://api.example.com/?q=1",
        "https://api.example.com/#x",
        "https://api.example.com/a/../b/",
        "https://api.example.com/a%2fb/",
        "https://bücher.example",
        "http://2130706433",
        "http://[::1%25eth0]",
        "https://",
        "",
    ],
)
def test_a_target_that_is_no_origin_or_prefix_is_refused_when_the_grant_is_made(target: str) -> None:
    with pytest.raises(UsageError, match="target"):
        grant(target)


@pytest.mark.parametrize(
    "options",
    [
        {"operations": "POST"},
        {"operations": ("a\nb",)},
        {"operations": (1,)},
        {"targets": "https://a.example"},
        {"allow_addresses": ("127.0.0.1/8",)},
        {"allow_addresses": ("localhost",)},
        {"allow_addresses": "127.0.0.1"},
    ],
)
def test_a_grant_of_the_wrong_shape_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Grant("http", **{"operations": (), **options})


def test_attenuation_narrows_each_part() -> None:
    wide = grant("https://a.example", "https://b.example/v1/", allow_addresses=("10.0.0.0/8", "::1/128"))
    narrow = wide.attenuate(operations=("GET",), targets=("https://a.example/x/",), allow_addresses=("10.1.0.0/16",))
    assert narrow == grant("https://a.example/x/", operations=("GET",), allow_addresses=("10.1.0.0/16",))
    assert wide.attenuate() == wide
    assert wide.attenuate(targets=()).targets == ()
    assert not wide.attenuate(targets=()).allows("http", "GET", "https://a.example/")
    assert narrow.attenuate(targets=("https://A.example:443/x/y/",)).allows("http", "GET", "https://a.example/x/y/z")


@pytest.mark.parametrize(
    "wider",
    [
        {"operations": ("GET", "DELETE")},
        {"targets": ("https://b.example",)},
        {"targets": ("https://b.example/",)},
        {"targets": ("https://b.example/v2/",)},
        {"targets": ("https://c.example/x/",)},
        {"targets": ("http://a.example",)},
        {"allow_addresses": ("0.0.0.0/0",)},
        {"allow_addresses": ("10.0.0.0/7",)},
        {"allow_addresses": ("::/0",)},
    ],
)
def test_attenuation_that_would_widen_is_refused(wider: dict[str, Any]) -> None:
    wide = grant("https://a.example", "https://b.example/v1/", allow_addresses=("10.0.0.0/8", "::1/128"))
    with pytest.raises(UsageError) as refused:
        wide.attenuate(**wider)
    assert refused.value.code == "grant-widened"


def test_a_special_address_is_open_only_where_a_range_names_it() -> None:
    one = grant(allow_addresses=("127.0.0.1/32", "fd00::/8"))
    assert one.opens("127.0.0.1")
    assert one.opens("::ffff:127.0.0.1")
    assert one.opens("fd12::1")
    for closed in ("127.0.0.2", "10.0.0.1", "::1", "169.254.169.254", "not an address", ""):
        assert not one.opens(closed)
    assert not grant().opens("127.0.0.1")
