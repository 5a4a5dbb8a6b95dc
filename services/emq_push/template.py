"""Payload templates: an endpoint declares the payload that it gets; nothing in a template runs.

The form is that of payload templates in the Amazon States Language (states-language.net/spec.html, "Payload Template").
A template is a JSON object. A field whose name ends with `.$` has a path as its value: the field, without `.$`, gets
what the path finds in the payload. All else is constant. A path is a singular query of JSONPath (RFC 9535, 2.3.5.1):
`$`, then names and numbers, such as `$.data.items[0]` or `$['first name']`. One that begins with `$$` is a path into
the message: `$$.id`, `$$.event_type`, `$$.key`, `$$.topic`.

Left out are intrinsic functions, wildcards and filters: each path finds one value, so a template costs one reading of
the payload and one writing of at most `MOST_BYTES`.
"""

from __future__ import annotations

import dataclasses
import decimal
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from emq.storage.message import Message
from emq_push.attributes import EVENT_TYPE

TEMPLATE = "push.template"
MOST_CHARACTERS = 8_192
"""Most characters of a template."""
MOST_VALUES = 256
"""Most fields and entries of a template, at all depths."""
MOST_DEPTH = 16
MOST_BYTES = 256 << 10
"""Most bytes of a payload that is rewritten, and of what the paths of a template find in it together."""
SUFFIX = ".$"
SHOWN = 60

_STEP = re.compile(r"""\.([^\W\d]\w*)|\[(0|[1-9][0-9]{0,8})\]|\['([^'\\]*)'\]|\["([^"\\]*)"\]""")
_MESSAGE: dict[str, Callable[[Message], str | None]] = {
    "id": lambda message: message.id,
    "event_type": lambda message: message.headers.get(EVENT_TYPE, "") if message.headers else "",
    "key": lambda message: message.key,
    "topic": lambda message: message.topic,
}
"""What paths find in a message."""

# Numbers pass as they are written: 1.10 stays 1.10.
_decode = msgspec.json.Decoder(float_hook=decimal.Decimal).decode
_decode_object = msgspec.json.Decoder(dict[str, Any], float_hook=decimal.Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode

Steps: TypeAlias = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """Attributes:
    text: as the template has it.
    steps: names and numbers, from the outside in.
    of_message: a path into the message, not its payload.
    """

    text: str
    steps: Steps
    of_message: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Template:
    """A template that was read.

    Attributes:
        text: its JSON.
        form: the template with a `Path` for each path.
    """

    text: str
    form: Mapping[str, Any] = dataclasses.field(compare=False)

    def rewritten(self, message: Message) -> Message:
        """Return a message as the endpoint gets it.

        Raises:
            ValueError: the payload is not JSON, lacks what a path names, or is too large. The text shows nothing of it.
        """
        if len(message.payload) > MOST_BYTES:
            raise ValueError(f"the payload has {len(message.payload):,} bytes; at most {MOST_BYTES:,} are rewritten")
        try:
            payload = _decode(message.payload)
            left = MOST_BYTES

            def found(path: Path) -> msgspec.Raw:
                nonlocal left
                raw = _encode(_found(path, payload, message))
                left -= len(raw)
                if left < 0:
                    raise ValueError(f"what its paths find has more than {MOST_BYTES:,} bytes")
                return msgspec.Raw(raw)

            return msgspec.structs.replace(message, payload=_encode(_filled(self.form, found)))
        except (msgspec.DecodeError, UnicodeDecodeError, decimal.InvalidOperation):
            raise ValueError("the payload is not JSON") from None
        except RecursionError:
            raise ValueError("the payload is nested too deeply") from None


def parsed(text: str) -> Template | None:
    """Return a template; None for an empty text.

    Raises:
        ValueError: it is no template; the text says why.
    """
    if not text:
        return None
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text):,} characters; at most {MOST_CHARACTERS:,}")
    try:
        values = _decode_object(text)
    except (msgspec.DecodeError, RecursionError, decimal.InvalidOperation) as exc:
        raise ValueError(f'must be a JSON object, such as {{"text.$": "$.data.title"}}: {exc}') from None
    left = MOST_VALUES

    def read(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > MOST_DEPTH:
            raise ValueError(f"may have {MOST_VALUES} values, in {MOST_DEPTH} levels, and has more")
        if isinstance(value, list):
            return [read(each, depth + 1) for each in value]
        if not isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for name, given in value.items():
            field = name.removesuffix(SUFFIX)
            if field in found:
                raise ValueError(f"gives {_shown(field)} twice")
            found[field] = _path(name, given) if name != field else read(given, depth + 1)
        return found

    return Template(text, read(values, 0))


def _path(name: str, given: object) -> Path:
    text = given if isinstance(given, str) else ""
    of_message = text.startswith("$$")
    at, steps = 2 if of_message else 1, []
    while step := _STEP.match(text, at):
        name_, number, *quoted = step.groups()
        steps.append(int(number) if number is not None else next(x for x in (name_, *quoted) if x is not None))
        at = step.end()
    if not text.startswith("$") or at != len(text):
        raise ValueError(f"has {_shown(name)} with {_shown(str(given))}, which is not a path such as $.data.items[0]")
    if of_message and (len(steps) != 1 or steps[0] not in _MESSAGE):
        raise ValueError(f"has the path {_shown(text)}; of a message there are $$.{', $$.'.join(_MESSAGE)}")
    return Path(text, tuple(steps), of_message)


def _filled(form: Any, found: Callable[[Path], msgspec.Raw]) -> Any:
    if isinstance(form, Path):
        return found(form)
    if isinstance(form, dict):
        return {name: _filled(value, found) for name, value in form.items()}
    return [_filled(value, found) for value in form] if isinstance(form, list) else form


def _found(path: Path, payload: Any, message: Message) -> Any:
    if path.of_message:
        return _MESSAGE[str(path.steps[0])](message)
    value = payload
    for step in path.steps:
        holder: type[Any] = dict if isinstance(step, str) else list
        if not isinstance(value, holder):
            raise _nothing(path)
        try:
            value = value[step]
        except LookupError:
            raise _nothing(path) from None
    return value


def _nothing(path: Path) -> ValueError:
    return ValueError(f"the payload has nothing at {_shown(path.text)}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")
