"""JSON that is checked before it is believed.

`decode` takes any bytes and gives a value of the wanted type or what is wrong with them. What a
writer of this version leaves is recognised by encoding it again: equal bytes hold no duplicate
keys, no odd numbers and no unknown fields. Everything else is taken apart slowly and named.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .record import SCHEMA, Environment, Record

T = TypeVar("T", Record, Environment)

_DIGITS = 19  # the largest 64-bit integer
_SHOWN = 200  # characters of a name or of a fault that are shown


@dataclass(frozen=True)
class Flaw:
    """One thing that is wrong: `field` (None: the whole), what it is, what would be right."""

    field: str | None
    wrong: str
    right: str

    def __str__(self) -> str:
        where = f"{printable(self.field)[:_SHOWN]}: " if self.field else ""
        return f"{where}{printable(self.wrong)[:_SHOWN]}; {self.right}"


_TOO_DEEP = Flaw(None, "is nested too deeply", "a few levels, as it is written")


@dataclass(frozen=True)
class Decoded(Generic[T]):
    """`value` is None exactly where there are flaws. `unknown`: fields this version ignores."""

    value: T | None
    flaws: tuple[Flaw, ...] = ()
    unknown: tuple[str, ...] = ()


class _Refused:
    """Stands in a parsed tree where a number or a key cannot be accepted."""

    def __init__(self, wrong: str, right: str) -> None:
        self.wrong, self.right = wrong, right


def printable(text: str) -> str:
    """One line without control characters, surrogates or direction marks."""
    if text.isprintable():
        return text
    return " ".join("".join(" " if _hidden(c) else c for c in text).split())


def _hidden(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def decode(data: bytes, kind: type[T]) -> Decoded[T]:
    """Decode one JSON object. Total: any bytes give a value or flaws, in bounded time."""
    try:
        value = msgspec.json.decode(data, type=kind)
        if msgspec.json.encode(value) == data.rstrip(b"\r\n"):
            plain = data.isascii() and b"\\" not in data and b"\x7f" not in data
            return _judged(value, (), texts=not plain)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return _decode_slowly(data, kind)
    except RecursionError:
        return Decoded(None, (_TOO_DEEP,))


def _flaws(value: Record | Environment, texts: bool) -> tuple[Flaw, ...]:
    """What types alone do not say: statuses against samples, dates, schema, and characters."""
    found = list(_record_flaws(value) if isinstance(value, Record) else _environment_flaws(value))
    for field, text in _texts(value) if texts else ():
        if not text.isprintable() and any(map(_hidden, text)):
            found.append(Flaw(field, f"{text[:40]!r} has control characters", "printable text"))
    return tuple(found)


def _flawed(field: str | None, wrong: str, right: str) -> Decoded[T]:
    return Decoded(None, (Flaw(field, wrong, right),))


def _judged(value: T, unknown: tuple[str, ...], texts: bool = True) -> Decoded[T]:
    flaws = _flaws(value, texts)
    return Decoded(None if flaws else value, flaws, unknown)


def parsed(data: bytes) -> tuple[dict[str, object] | None, tuple[Flaw, ...]]:
    """One object of strict JSON, or what is wrong with it. Total, in bounded time."""
    try:
        return _parsed(data)
    except RecursionError:
        return None, (_TOO_DEEP,)


def _parsed(data: bytes) -> tuple[dict[str, object] | None, tuple[Flaw, ...]]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"is not valid UTF-8 at byte {error.start}"
        return None, (Flaw(None, wrong, "JSON in UTF-8"),)
    try:
        tree = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=lambda name: _Refused(f"is {name}", "a finite number, or null"),
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        wrong = f"is not valid JSON at character {error.pos + 1}: {error.msg}"
        return None, (Flaw(None, wrong, "one complete JSON object"),)
    if isinstance(tree, _Refused):  # a lone number
        return None, (Flaw(None, tree.wrong, "one JSON object {…}"),)
    if not isinstance(tree, dict):
        return None, (Flaw(None, f"is {_shown(tree)}", "one JSON object {…}"),)
    flaws = tuple(Flaw(path, r.wrong, r.right) for path, r in _refusals(tree))
    return (None, flaws) if flaws else (tree, ())


def _decode_slowly(data: bytes, kind: type[T]) -> Decoded[T]:
    tree, flaws = parsed(data)
    if tree is None:
        return Decoded(None, flaws)
    schema = tree.get("schema")
    if type(schema) is int and schema > SCHEMA:
        right = f"this version reads up to {SCHEMA}: update membound"
        return _flawed("schema", f"is {schema}, written by a newer membound", right)
    unknown = tuple(sorted(set(tree) - set(kind.__struct_fields__)))
    try:
        return _judged(msgspec.convert(tree, kind), unknown)
    except UnicodeEncodeError:
        return _flawed(None, "holds half of a surrogate pair", "whole characters of Unicode")
    except msgspec.ValidationError as error:
        return Decoded(None, (explained(str(error), tree, kind),))


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        made[key] = _Refused("is given twice", "each field once") if key in made else value
    return made


def _float(digits: str) -> float | _Refused:
    number = float(digits)
    return number if math.isfinite(number) else _Refused(f"is {digits[:20]}", "a finite number")


def _int(digits: str) -> int | _Refused:
    if len(digits.lstrip("-")) > _DIGITS:
        return _Refused(f"is an integer of {len(digits.lstrip('-'))} digits", "at most 64 bits")
    return int(digits)


def _refusals(tree: object) -> Iterator[tuple[str, _Refused]]:
    pending = [("", tree)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, _Refused):
            yield path, node
        elif isinstance(node, dict):
            pending += [(f"{path}.{key}".lstrip("."), value) for key, value in node.items()]
        elif isinstance(node, list):
            pending += [(f"{path}[{i}]", value) for i, value in enumerate(node)]


def explained(message: str, tree: Mapping[str, object], kind: type[msgspec.Struct]) -> Flaw:
    """msgspec's one message as a flaw: "Expected `int` >= 0, got … - at `$.shape[...]`"."""
    what, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if missing := re.search(r"missing required field `(.+)`", what):
        return Flaw(f"{path}.{missing[1]}".lstrip("."), "is missing", "it has to be given")
    name = re.split(r"[.\[]", path)[0]
    wanted, _, got = what.removeprefix("Expected ").partition(", got ")
    allowed = _choices(kind, name)
    right = f"one of {', '.join(allowed)}" if allowed else wanted.replace("`", "")
    if "[...]" in path:  # some value of an object
        return Flaw(path.replace("[...]", ""), "holds a wrong value", f"each should be {right}")
    value = _at(tree, path)
    shown = _shown(value) if value is not None else got.replace("`", "") or "null"
    return Flaw(path or None, f"is {shown}", f"should be {right}")


def _choices(kind: type[msgspec.Struct], field: str) -> tuple[str, ...]:
    hint: Any = get_type_hints(kind).get(field)
    options = [hint, *get_args(hint)]
    return next((get_args(option) for option in options if get_origin(option) is Literal), ())


def _at(tree: object, path: str) -> object:
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        try:
            tree = tree[key or int(index)]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _shown(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "the text", bool: "the boolean"}
    kind = kinds.get(type(value), "")
    if isinstance(value, dict | list):
        return kind
    return f"{kind} {json.dumps(value)[:40]}".strip()


def _record_flaws(record: Record) -> Iterator[Flaw]:
    yield from _schema_flaws(record.schema)
    if record.status == "ok":
        if not record.seconds:
            yield Flaw("seconds", "is empty though status is ok", "at least one sample")
        if record.timer is None:
            yield Flaw("timer", "is unknown though status is ok", "the timer's name")
    elif not record.reason:
        yield Flaw("reason", f"is missing though status is {record.status}", "why, in one line")
    yield from _time_flaws("started_at", record.started_at)


def _environment_flaws(environment: Environment) -> Iterator[Flaw]:
    yield from _schema_flaws(environment.schema)
    yield from _time_flaws("started_at", environment.started_at)
    if environment.finished_at is not None:
        yield from _time_flaws("finished_at", environment.finished_at)


def _schema_flaws(schema: int) -> Iterator[Flaw]:
    if schema > SCHEMA:
        right = f"this version reads up to {SCHEMA}: update membound"
        yield Flaw("schema", f"is {schema}, written by a newer membound", right)


def _time_flaws(field: str, text: str) -> Iterator[Flaw]:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        yield Flaw(field, f"is {_shown(text)}", "an ISO 8601 time")
        return
    if moment.tzinfo is None:
        yield Flaw(field, f"is {_shown(text)}, without a time zone", "UTC, ending in Z")


def _texts(value: object) -> Iterator[tuple[str, str]]:
    """Every text in a record or environment with the path of its field."""
    pending = [("", value)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, str):
            yield path, node
        elif isinstance(node, msgspec.Struct):
            fields = node.__struct_fields__
            pending += [(f"{path}.{name}".lstrip("."), getattr(node, name)) for name in fields]
        elif isinstance(node, dict):
            for key, child in node.items():
                pending += [(path, key), (f"{path}.{key}", child)]
        elif isinstance(node, list) and not (node and isinstance(node[0], int | float)):
            pending += [(f"{path}[{i}]", child) for i, child in enumerate(node)]
