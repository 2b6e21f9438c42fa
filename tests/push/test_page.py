"""docs/push.md: what it tells receivers to do works."""

import re
from pathlib import Path
from typing import Any

from tests.push.harness import SECRET, Receiver, in_a_loop, pushing
from waypost.http.consumers import make_secret
from waypost.push.answers import LONGEST_WAIT_SECONDS
from waypost.push.breaker import Tripping
from waypost.push.sending import ANSWER_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "push.md").read_text("utf-8")


@in_a_loop
async def test_the_function_on_the_page_verifies_a_request(folder: Path) -> None:
    found = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    async with Receiver() as receiver, pushing(folder) as bench:
        await bench.register("billing", receiver.url, secrets=(make_secret(), SECRET))
        await bench.ended(await bench.publish(b"{}"))
    (got,) = receiver.got
    assert names["verified"](SECRET, got.headers, got.body)
    assert not names["verified"](SECRET, got.headers, got.body + b" ")
    assert not names["verified"](make_secret(), got.headers, got.body)


def test_the_figures_on_the_page_are_those_of_the_code() -> None:
    assert (Tripping().failures, Tripping().first_seconds, Tripping().longest_seconds) == (5, 1.0, 60.0)
    assert "Five outages in a row" in PAGE
    assert "for 1 second" in PAGE
    assert "up to a minute" in PAGE
    assert ANSWER_BYTES == 16 << 10
    assert "16 KiB" in PAGE
    assert LONGEST_WAIT_SECONDS == 3_600
