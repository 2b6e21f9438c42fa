"""Which addresses may be called: a table, because each of them has been somebody's hole."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waypost.errors import RequestInvalid
from waypost.push.addresses import AddressRefused, check_url, literal, parse_allowed, refusal

NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.127.255.255",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::8.8.8.8",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::10.0.0.1",
    "64:ff9b:1:a00:0:100::",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd12:3456::1",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "2606:4700::5efe:10.0.0.1",
    "2606:4700::200:5efe:127.0.0.1",
]
FINE = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.0.1",
    "172.32.0.1",
    "169.253.1.1",
    "192.0.1.1",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001::200e",
    "2606:4700::5efe:8.8.8.8",
]


@pytest.mark.parametrize("address", NEVER)
def test_an_address_that_the_public_cannot_reach_is_refused(address: str) -> None:
    assert refusal(ip_address(address)) is not None


@pytest.mark.parametrize("address", FINE)
def test_a_public_address_may_be_called(address: str) -> None:
    assert refusal(ip_address(address)) is None


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_the_same_when_it_travels_in_an_ipv6_address(bits: int) -> None:
    inner = IPv4Address(bits)
    everything = parse_allowed(["::/0"])
    wrapped = [
        f"::ffff:{inner}",
        f"64:ff9b::{inner}",
        str(IPv6Address(0x2002 << 112 | bits << 80 | 1)),
        str(IPv6Address(0x2001 << 112 | int(IPv4Address("8.8.8.8")) << 64 | bits ^ 0xFFFFFFFF)),
        f"2606:4700::5efe:{inner}",
    ]
    for text in wrapped:
        assert (refusal(ip_address(text), everything) is None) is (refusal(inner) is None), text


def test_what_the_operator_allows_may_be_called_and_nothing_beside_it() -> None:
    allowed = parse_allowed(["10.1.0.0/16", "fd00::/8"])
    assert refusal(ip_address("10.1.2.3"), allowed) is None
    assert refusal(ip_address("::ffff:10.1.2.3"), allowed) is None
    assert refusal(ip_address("fd00::1"), allowed) is None
    assert refusal(ip_address("10.2.0.1"), allowed) == "private"
    assert refusal(ip_address("64:ff9b::10.1.2.3"), allowed) == "NAT64"
    assert refusal(ip_address("127.0.0.1"), allowed) == "loopback"


def test_an_allowed_translator_does_not_open_what_lies_behind_it() -> None:
    allowed = parse_allowed(["64:ff9b::/96"])
    assert refusal(ip_address("64:ff9b::8.8.8.8"), allowed) is None
    assert refusal(ip_address("64:ff9b::10.0.0.1"), allowed) == "10.0.0.1 inside it is private"


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0.1/8", "example.com", "", "10.0.0.0/8,"])
def test_what_is_no_network_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"10\.1\.0\.0/16"):
        parse_allowed([text])


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0X7F.1",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "017700000001",
        "127.0.0.1.",
        "1.2.3.4.5",
        "256.1.1.1",
        "fe80::1%eth0",
        "1.2.3.0x4",
        "example.123",
    ],
)
def test_an_address_in_an_odd_spelling_is_refused(host: str) -> None:
    with pytest.raises(RequestInvalid):
        literal(host)


@pytest.mark.parametrize("host", ["example.com", "a", "xn--bcher-kva.example", "1password.com", "0x.example"])
def test_a_name_is_left_to_the_resolver(host: str) -> None:
    assert literal(host) is None


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("ftp://example.com/", "http"),
        ("file:///etc/passwd", "http"),
        ("gopher://example.com", "http"),
        ("//example.com/", "http"),
        ("http:///path", "host"),
        ("https://example.com:0/", "port"),
        ("https://example.com:99999/", "URL"),
        ("https://user:secret@example.com/", "password"),
        ("https://user@example.com/", "password"),
        ("https://@example.com/", "password"),
        ("https://example.com/#part", "fragment"),
        ("https://exa mple.com/", "printable"),
        ("https://example.com\\@127.0.0.1/", "printable"),
        ("https://example.com/\r\nX: y", "printable"),
        ("https://bücher.example/", "printable"),
        ("https://example.com/" + "a" * 2_000, "printable"),
        ("http://[::1", "URL"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_its_reason(url: str, word: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        check_url(url)
    assert refused.value.code == "URL_INVALID"
    assert word in refused.value.detail
    assert "secret@" not in refused.value.detail


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9/", "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://169.254.169.254/latest"],
)
def test_an_address_in_a_url_is_judged_like_a_resolved_one(url: str) -> None:
    with pytest.raises(AddressRefused) as refused:
        check_url(url)
    assert "--push-allow" in refused.value.hint
    check_url(url, parse_allowed(["127.0.0.0/8", "::1/128", "10.0.0.0/8", "169.254.169.254/32"]))


def test_an_ordinary_url_is_fine() -> None:
    assert check_url("https://hooks.example:8443/in?a=b").hostname == "hooks.example"
