"""Content: the same however it is written, and never the same when it is not."""

import pytest

from waypost.canonical import PathInvalid, content_hash, parse_path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1,"b":[true,null]}', b' { "b" : [ true , null ] ,\n"a" : 1 } '),
        (b"1", b"1.0"),
        (b"[100, 0.10, -0.0, 1e2]", b"[1e2, 1E-1, 0, 100.000]"),
        (b'"\\u0041\\u00fc\\ud83d\\ude00"', '"Aü😀"'.encode()),
        (b'{"a":{"c":1,"b":2}}', b'{"a":{"b":2,"c":1}}'),
        (b"123456789012345678901234567890123", b"123456789012345678901234567890123.0"),
    ],
)
def test_the_same_json_written_otherwise_is_the_same_content(one: bytes, other: bytes) -> None:
    assert content_hash(one) == content_hash(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b'"1"'),
        (b"1", b"10"),
        (b"1", b"-1"),
        (b"123456789012345678901234567890123", b"123456789012345678901234567890124"),
        (b"0.1", b"0.10000000000000000000000000001"),
        (b"[1,2]", b"[2,1]"),
        (b"[[1],2]", b"[1,[2]]"),
        (b"{}", b"[]"),
        (b'{"a":null}', b"{}"),
        (b"true", b'"true"'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        (b"NaN", b"null"),
        (b"no json", b"no  json"),
        (b"\xff", b"\xfe"),
        (b"", b" "),
    ],
)
def test_another_content_has_another_hash(one: bytes, other: bytes) -> None:
    assert content_hash(one) != content_hash(other)


def test_bytes_never_pass_for_json() -> None:
    assert content_hash(b"1") != content_hash(b"1e0,")
    assert content_hash(b'{"a":1,"a":1}') == content_hash(b'{"a":1,"a":1}')


def test_what_is_nested_deeper_than_the_bound_is_compared_by_its_bytes() -> None:
    for depth, same in ((200, True), (202, False), (100_000, False)):
        one, other = b"[" * depth + b"]" * depth, b"[ " * depth + b"]" * depth
        assert (content_hash(one) == content_hash(other)) is same


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("$.at", b'{"a":1,"at":1}', b'{"a":1,"at":2}'),
        ("$.at", b'{"a":1,"at":1}', b'{"a":1}'),
        ("$.h.run", b'{"h":{"run":1,"x":1}}', b'{"h":{"run":2,"x":1}}'),
        ("$.items[*].seen", b'{"items":[{"seen":1,"n":1},{"n":2}]}', b'{"items":[{"n":1},{"seen":3,"n":2}]}'),
        ("$[0]", b"[1,2]", b"[9,2]"),
        ("$['odd name']", b'{"odd name":1}', b'{"odd name":2}'),
        ('$["it\'s"]', b'{"it\'s":1}', b"{}"),
        ("$.*.at", b'{"x":{"at":1}}', b'{"x":{"at":2}}'),
    ],
)
def test_what_a_path_leads_to_is_ignored(path: str, one: bytes, other: bytes) -> None:
    assert content_hash(one) != content_hash(other)
    assert content_hash(one, (path,)) == content_hash(other, (path,))


@pytest.mark.parametrize(
    ("path", "one", "other"),
    [
        ("$.at", b'{"x":{"at":1}}', b'{"x":{"at":2}}'),
        ("$.at", b'["at"]', b'["to"]'),
        ("$[0]", b'{"0":1}', b'{"0":2}'),
        ("$[5]", b"[1]", b"[2]"),
        ("$.at", b"at 1", b"at 2"),
    ],
)
def test_a_path_ignores_nothing_else(path: str, one: bytes, other: bytes) -> None:
    assert content_hash(one, (path,)) != content_hash(other, (path,))


@pytest.mark.parametrize(
    "path", ["", "a", "$", "$a", "$.", "$..a", "$[-1]", "$[a]", "$.a b", "$['a]", "$.a]"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(PathInvalid):
        parse_path(path)
