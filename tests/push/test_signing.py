"""Signatures, checked by the package that receivers use."""

import base64
import os
import time

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from waypost.errors import RequestInvalid
from waypost.http.consumers import make_secret
from waypost.push.signing import key_of, signature

BODY = '{"name": "Müller"}'.encode()


def headers(
    secrets: list[str], id: str = "id-1", body: bytes = BODY, at: int | None = None
) -> dict[str, str]:
    timestamp = int(time.time()) if at is None else at
    signed = signature([key_of(secret) for secret in secrets], id, timestamp, body)
    return {"webhook-id": id, "webhook-timestamp": str(timestamp), "webhook-signature": signed}


def test_a_made_secret_signs_what_the_package_verifies() -> None:
    secret = make_secret()
    assert len(key_of(secret)) == 32
    assert Webhook(secret).verify(BODY, headers([secret])) == {"name": "Müller"}


def test_with_two_secrets_each_of_them_verifies() -> None:
    old, new = make_secret(), make_secret()
    both = headers([new, old])
    assert len(both["webhook-signature"].split(" ")) == 2
    Webhook(old).verify(BODY, both)
    Webhook(new).verify(BODY, both)


def test_another_body_id_time_or_secret_does_not_verify() -> None:
    secret = make_secret()
    for changed in ({"webhook-id": "id-2"}, {"webhook-timestamp": str(int(time.time()) + 1)}):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(BODY, headers([secret]) | changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", headers([secret]))
    with pytest.raises(WebhookVerificationError):
        Webhook(make_secret()).verify(BODY, headers([secret]))
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(secret).verify(BODY, headers([secret], at=int(time.time()) - 3_600))


@pytest.mark.parametrize("bytes", [0, 23, 65])
def test_a_secret_of_the_wrong_length_is_refused_and_not_repeated(bytes: int) -> None:
    secret = "whsec_" + base64.b64encode(os.urandom(bytes)).decode()
    with pytest.raises(RequestInvalid) as refused:
        key_of(secret)
    assert bytes == 0 or secret[6:] not in str(refused.value)
