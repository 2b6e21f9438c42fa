"""Ids and receipts carry where their row is, and what it must hold."""

import random
import uuid

import pytest

from waypost.message import (
    SALT_MASK,
    MessageId,
    id_maker,
    make_id,
    make_receipt,
    parse_id,
    parse_receipt,
    payload_hash,
    system_entropy,
)

NOW = 1_800_000_000_123_456


@pytest.mark.parametrize("sequence", [1, 2, 255, 2**22, 2**36 + 5, 2**48 - 1])
@pytest.mark.parametrize("salt", [0, 1, 2**26 - 1])
def test_an_id_comes_apart_as_it_was_made(sequence: int, salt: int) -> None:
    assert parse_id(make_id(sequence, salt, NOW)) == MessageId(sequence, salt, NOW // 1_000)


def test_ids_of_one_moment_are_those_made_one_by_one() -> None:
    make = id_maker(NOW)
    for sequence in (1, 2, 2**22 - 1, 2**22, 2**22 + 1, 2**36 + 5, 2**48 - 1):
        for salt in (0, 1, SALT_MASK):
            assert make(sequence, salt) == make_id(sequence, salt, NOW)


def test_an_id_is_a_valid_uuid_of_version_7_with_its_time() -> None:
    chance = random.Random(1)
    for _ in range(500):
        text = make_id(chance.randrange(1, 2**48), chance.getrandbits(64), NOW)
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert parsed.int >> 80 == NOW // 1_000


def test_ids_sort_by_time_and_then_by_sequence_whatever_the_salt() -> None:
    chance = random.Random(2)
    ids = []
    sequence = 1
    for ms in range(40):
        for _ in range(5):
            sequence += chance.randrange(1, 2**40)
            ids.append(make_id(sequence, chance.getrandbits(64), NOW + 1_000 * ms))
    assert ids == sorted(ids)


def test_a_salt_of_64_bits_is_cut_to_what_an_id_has_room_for() -> None:
    salt = 2**64 - 1
    parsed = parse_id(make_id(7, salt, NOW))
    assert parsed is not None
    assert parsed.salt == salt & SALT_MASK == 2**26 - 1
    assert parsed.sequence == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "order-17",
        make_id(1, 1, NOW).upper(),
        make_id(1, 1, NOW) + "\n",
        make_id(1, 1, NOW)[:-1],
        make_id(1, 1, NOW).replace("-", ""),
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "01890000-0000-7000-c000-000004000001",
    ],
)
def test_what_is_not_of_our_form_is_a_producers_own_id(text: str) -> None:
    assert parse_id(text) is None


@pytest.mark.parametrize("offset", [1, 15, 16, 2**40, 2**59])
@pytest.mark.parametrize("salt", [0, 1, 2**64 - 1])
def test_a_receipt_comes_apart_as_it_was_made(offset: int, salt: int) -> None:
    assert parse_receipt(make_receipt(offset, salt)) == (offset, salt)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1-",
        "0-0000000000000000",
        "01-0000000000000000",
        "1-000000000000000",
        "1-00000000000000000",
        "1-000000000000000G",
        "A-0000000000000000",
        "1-0000000000000000\n",
        " 1-0000000000000000",
        "1000000000000000-0000000000000000",
        "٣-0000000000000000",
    ],
)
def test_what_cannot_be_a_receipt_is_none(text: str) -> None:
    assert parse_receipt(text) is None


def test_every_offset_a_receipt_can_name_fits_64_signed_bits() -> None:
    parsed = parse_receipt("f" * 15 + "-" + "f" * 16)
    assert parsed is not None
    assert parsed[0] < 2**63


def test_the_hash_of_a_payload_is_sha_256() -> None:
    assert payload_hash(b"").hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_system_entropy_gives_other_words_each_time() -> None:
    draw = system_entropy(4)
    words = [draw() for _ in range(50)]
    assert len(set(words)) == 50
    assert all(0 <= word < 2**64 for word in words)
