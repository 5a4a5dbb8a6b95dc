"""A document becomes a struct, or an error of one line names the key, its value and what would be right."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from emq.runtime import errors
from emq.runtime.documents import converted, parsed


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    share: Annotated[float, Meta(gt=0, lt=1)]
    span: tuple[int, Annotated[int, Meta(ge=1)]] | None = None


class Whole(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=0, le=2000)] | None = None
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    secrets: dict[str, Annotated[int, Meta(ge=0)]] = {}
    parts: tuple[Part, ...] = ()
    one: Part | None = None
    rate: Annotated[float, Meta(ge=0.5, le=7e3)] = 1.0


def said(document: object) -> str:
    with pytest.raises(errors.InvalidTopic) as caught:
        converted(document, Whole, "it", errors.InvalidTopic)
    return str(caught.value)


def test_a_good_document_becomes_a_struct() -> None:
    document = {"size": 3, "colour": "blue", "parts": [{"share": 0.5, "span": [1, 2]}]}
    whole = converted(document, Whole, "it", errors.InvalidTopic)
    assert whole == Whole(3, Colour.BLUE, parts=(Part(0.5, (1, 2)),))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"size": 2001}, "it: size = 2001 must be from 0 to 2,000"),
        ({"rate": 0}, "it: rate = 0 must be from 0.5 to 7,000"),
        ({"size": "x"}, "it: size = 'x' does not fit: Expected `int | null`, got `str`"),
        ({"colour": "green"}, "it: colour = 'green' must be one of red, blue"),
        ({"mode": "odd"}, "it: mode = 'odd' must be one of fast, slow"),
        ({"parts": [{"share": 0.5}, {"share": 1}]}, "it: parts[1].share = 1 must be above 0 and below 1"),
        ({"one": {"share": float("nan")}}, "it: one.share = nan must be above 0 and below 1"),
        ({"one": {"share": 0.5, "span": [1, 0]}}, "it: one.span[1] = 0 must be at least 1"),
        ({"one": {"share": 0.5, "span": [1]}}, "it: one.span does not fit: Expected `array` of length 2, got 1"),
        ({"one": {}}, "it: key 'one.share' is missing; give it a value"),
        ({"parts": [{"share": 0.5, "x": 1}]}, "it: there is no key 'parts[0].x'; the keys are share, span"),
        ({"secrets": {"password": 1234, "n": -1}}, "it: secrets[...] must be at least 0"),
        ({"parts": {"password": 1234}}, "it: parts does not fit: Expected `array`, got `object`"),
        ([], "it: the document does not fit: Expected `object`, got `array`"),
        ({"colours": 1}, "it: there is no key 'colours'; did you mean 'colour'?"),
        ({"x": 1}, "it: there is no key 'x'; the keys are size, colour, mode, secrets, parts, one, rate"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(document: Any, text: str) -> None:
    assert said(document) == text


@pytest.mark.parametrize(
    ("text", "fmt", "reason"),
    [
        ("a = " + "9" * 5000, "toml", "a number has thousands of digits"),
        ("a = " + "[" * 5000, "toml", "its values are nested too deeply"),
        ("[" * 100_000, "json", "its values are nested too deeply"),
        ('{"a": "\ud800"}', "json", "it has characters that UTF-8 cannot hold"),
        ("a = \n", "toml", "Invalid value (at line 1, column 5)"),
        ('{"a"', "json", "Input data was truncated"),
    ],
    ids=["digits", "deep TOML", "deep JSON", "surrogate", "TOML", "JSON"],
)
def test_a_text_that_cannot_be_read_is_refused_in_one_line(text: str, fmt: str, reason: str) -> None:
    with pytest.raises(errors.InvalidSettings) as caught:
        parsed(text, fmt, "it", errors.InvalidSettings)
    assert str(caught.value) == f"it is not valid {fmt.upper()}: {reason}"


@pytest.mark.parametrize("secret", [["s3cret"], [{"password": "s3cret"}], {"a": "s3cret"}, "redis://u:s3cret@h"])
def test_no_error_shows_what_may_be_a_secret(secret: object) -> None:
    for key in ("size", "colour", "mode", "parts", "one", "secrets"):
        assert "s3cret" not in said({key: secret})
