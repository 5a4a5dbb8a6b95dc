"""The models that the API makes from structs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from msgspec import Meta

from emq_clients.requests import Page, one_of
from emq_web import forms, models


class Inner(msgspec.Struct, frozen=True):
    """A part.

    Attributes:
        size: in metres.
    """

    size: Annotated[float, Meta(gt=0, le=9)] = 1.0


class Thing(Inner, frozen=True, kw_only=True):
    """A thing.

    It has two paragraphs.

    Attributes:
        name, nick: a text, or None for one that
            is not True.
        state: now.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z]+\Z")]
    nick: str | None = None
    state: Annotated[str, one_of("new", "old")] = "new"
    parts: tuple[Inner, ...] = ()


def test_a_docstring_describes_fields_in_words_of_json() -> None:
    text = "a text, or null for one that is not true"
    assert models.descriptions(Thing) == {"size": "in metres", "name": text, "nick": text, "state": "now"}
    assert models.summary(Thing) == "A thing.\n\nIt has two paragraphs."


def test_an_answer_has_all_its_fields_and_takes_states_of_a_newer_version() -> None:
    model = models.answer(Thing, "ThingShown", without=("nick",))
    schema = model.model_json_schema()
    assert schema["required"] == ["size", "name", "state", "parts"]
    assert schema["properties"]["state"]["enum"] == ["new", "old"]
    found = model.model_validate(Thing(name="a", state="newer", parts=(Inner(2.0),)), from_attributes=True)
    assert found.model_dump() == {"size": 1.0, "name": "a", "state": "newer", "parts": [{"size": 2.0}]}


def test_the_first_model_of_a_struct_stands_for_it() -> None:
    class Named(msgspec.Struct):
        id: str

    first = models.answer(Named, "First")
    assert models.answer(Named, "Second").__name__ == "Second"
    assert models.of(Named) is first
    page = models.of(Page[Named])
    assert (page.__name__, page.model_fields["data"].annotation) == ("FirstPage", list[first])


@pytest.mark.parametrize(
    "wrong",
    [{}, {"name": "a\n"}, {"name": 1}, {"name": "a", "size": 0}, {"name": "a", "parts": [{"size": 10}]},
     {"name": "a", "colour": "red"}],
)  # fmt: skip
def test_a_body_is_held_to_the_ranges_of_its_struct(wrong: Any) -> None:
    model = models.body(Thing, "ThingBody").dependency.__annotations__["body"]
    assert model.model_validate({"name": "a", "parts": [{"size": 9}]}).name == "a"
    with pytest.raises(ValueError, match="ThingBody"):
        model.model_validate(wrong)


class Whole(msgspec.Struct, frozen=True):
    name: str
    size: int = 5
    inner: Inner = Inner()
    credentials: Inner = Inner()
    texts: dict[str, str] = {}


async def test_a_patch_has_the_given_fields_alone_and_null_is_a_default() -> None:
    read = models.patch(Whole, "WholeChanges").dependency
    model = read.__annotations__["body"]
    assert "required" not in model.model_json_schema()
    assert "default" not in model.model_json_schema()["properties"]["size"]

    async def given(**body: Any) -> Any:
        return await read(model.model_validate(body))

    assert await given() == {}
    assert await given(size=None, credentials=None) == {"size": 5, "credentials": {"size": 1.0}}
    assert await given(inner={}, texts={"a": None, "b": "c"}) == {"inner": {}, "texts": {"a": None, "b": "c"}}
    assert await given(texts=None) == {"texts": None}, "not the default, which would change no member"
    for wrong in ({"name": None}, {"inner": {"colour": 1}}, {"inner": {"size": 10}}, {"texts": {"a": 1}}):
        with pytest.raises(ValueError, match="WholeChanges"):
            await given(**wrong)


def test_a_body_full_of_unknown_fields_has_few_errors() -> None:
    """Each error costs 10 us of the event loop, and a body has room for 600,000."""

    class Made(forms.Body):
        name: str = ""

    unknown = {f"a{n}": n for n in range(10_000)}
    with pytest.raises(pydantic.ValidationError) as found:
        Made.model_validate({**unknown, "name": 5})
    assert found.value.error_count() == forms.MOST_UNKNOWN + 1
    assert found.value.errors()[0]["loc"] == ("name",)
