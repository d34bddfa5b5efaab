"""Frozen dataclasses of settings: built from plain values, strictly, with the exact path in every error.

A settings class is a standard frozen dataclass. Its fields may be annotated with ranges and one line of help:

    lam: Annotated[float, Ge(0), "strength of the pull towards the anchor"] = 0.1

A number without an upper limit of its own has that of `DEFAULT_LIMITS`, so that each value that is accepted can be
computed with. `AtMost` declares a limit together with its reason.

A setting that got another name is refused with the new one if the class lists it: `renamed = {"old": "new"}`, without
an annotation.
"""
from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

# The ranges that classes of settings use.
from annotated_types import Ge as Ge
from annotated_types import GroupedMetadata
from annotated_types import Gt as Gt
from annotated_types import Le as Le
from annotated_types import Lt as Lt

from fedmpi.errors import BadInput
from fedmpi.hints import find_close_settings
from fedmpi.json_values import Json
from fedmpi.own_code.misdeclared import refuse_misdeclared
from fedmpi.own_code.places import is_own_module

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

Settings = TypeVar("Settings")

# What pydantic calls values, and what users of YAML call them.
PYDANTIC_WORDS = {"an object": "a mapping", "a valid dictionary": "a mapping", "a valid array": "a list",
                  "a valid list": "a list"}
# Metadata of a field that is not a setting: configurations cannot name it.
NO_SETTING = {"setting": False}


@dataclasses.dataclass(frozen=True)
class AtMost(GroupedMetadata):
    """The largest value of a setting, and why there is one, which the error says."""
    limit: float
    why: str

    def __iter__(self) -> Iterator[Le]:
        """Yield the range as pydantic takes it."""
        yield Le(self.limit)


# Limits of numbers that declare none, by type: what arrays and training can hold.
DEFAULT_LIMITS = {float: AtMost(3.4028234663852886e38, "the largest number of float32, in which training computes"),
                  int: AtMost(2 ** 31 - 1, "positions and counts are 32-bit integers")}
# What marks counts of models, and of passes over the samples. `fedmpi.memory_check` also compares them with memory.
KEPT_MODELS = AtMost(4096, "the server keeps a model for each, and compares them with each other")
DRAWN_PASSES = AtMost(1_000_000, "the batches of all passes are drawn before the first step")
ModelCount = Annotated[int, Ge(1), KEPT_MODELS]
PassCount = Annotated[int, DRAWN_PASSES]
DrawCount = Annotated[int, Ge(1), AtMost(1_000_000, "more draws take hours, and seek what is too rare to be found")]


def make_settings(cls: type[Settings], values: object, where: str,
                  places: Mapping[str, type] | None = None) -> Settings:
    """Return the settings that a configuration gives for a class.

    Args:
        cls: a frozen dataclass of settings
        values: the section of the configuration
        where: the dotted path of the section, "" for the top level
        places: the classes of all sections by their dotted path, in which a setting that is not found here is looked
            for, to name it in the error

    Raises:
        BadInput: with the keys that are wrong, their paths and what is allowed; or if the class declares them wrongly.
            Values are looked at only if there are no unknown keys."""
    refuse_unfit_class(cls, where)
    if not isinstance(values, dict):
        is_name = isinstance(values, str) and values.isprintable() and "name" in list_setting_names(cls)
        raise BadInput(f"{where or 'the configuration'} must be a mapping of settings, not {shorten_value(values)}"
                       + f" (did you mean {where}.name={values}?)" * is_name)
    problems = [describe_unknown_setting(cls, key, where, places) for key in values
                if key not in list_setting_names(cls)]
    problems += [f"{join_path(where, key)} = {shorten_value(value)}: should be made of finite numbers, texts, lists "
                 "and mappings" for key, value in values.items() if not is_plain(value)]
    problems += [f"{join_path(where, key)} = {shorten_value(value)}: should have no NUL character"
                 for key, value in values.items() if isinstance(value, str) and "\0" in value]
    if problems:
        raise BadInput("\n".join(problems))
    from pydantic import ValidationError
    try:
        kind: type = cls
        built = make_adapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        # a value that fits none of several types gives an error for each type
        found: dict[str, list[str]] = {}
        for e in error.errors():
            cause = e.get("ctx", {}).get("error")
            # Settings refuse with plain ValueErrors that say why. One without a word, or a UnicodeDecodeError, say, is
            # a failure of the user's own class.
            if isinstance(cause, ValueError) and (type(cause) is not ValueError or not str(cause)):
                raise cause from None
            where_what, message = describe_invalid_setting(e, where, cls, values)
            found.setdefault(where_what, []).append(message)
        raise BadInput("\n".join(f"{what}{' or '.join(messages)}" for what, messages in found.items())) from None
    assert isinstance(built, cls)
    if problems := [f"{join_path(where, key)} = {shorten_value(values[key])}: {problem}" for key in values
                    if (problem := describe_excess(cls, key, getattr(built, key)))]:
        raise BadInput("\n".join(problems))
    return built


def refuse_unfit_class(cls: type, where: str) -> None:
    """Raise BadInput if a class declares its settings wrongly, or gives one a default that cannot be written down.

    Args:
        where: what asks for the class, for the error"""
    refuse_misdeclared(cls, where)
    refuse_other_defaults(cls, where)


def refuse_other_defaults(cls: type, where: str) -> None:
    """Raise BadInput if a setting of the user's own class has a default that no configuration can hold, since a run
    writes down all its settings.

    Args:
        where: what asks for the class, for the error"""
    if not dataclasses.is_dataclass(cls) or not is_own_module(cls.__module__):
        return
    for field in filter(is_setting, dataclasses.fields(cls)):
        value = find_default(field)
        if not is_plain(value):
            raise BadInput(f"{where}: {cls.__module__}:{cls.__qualname__} gives {field.name} the default "
                           f"{shorten_value(value)}, but settings are made of finite numbers, texts, lists and "
                           "mappings; declare a Literal of texts in place of an Enum, and each field of another class "
                           "as a setting")


def find_default(field: dataclasses.Field[object]) -> object:
    """Return the default of a field, None if it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def describe_excess(cls: type, name: str, value: object) -> str:
    """Return what is wrong with a number, or one of several, that exceeds its type's default limit; "" if none does.

    Settings that declare an upper limit are not looked at: pydantic has compared them with it."""
    if any(isinstance(mark, AtMost | Le | Lt) for mark in collect_marks(cls)[name]):
        return ""
    for number in value if isinstance(value, tuple) else (value,):
        most = DEFAULT_LIMITS.get(type(number))
        if most and number > most.limit:
            return f"should be less than or equal to {most.limit:.10g} ({most.why})"
        if most and number < -most.limit:
            return f"should be greater than or equal to {-most.limit:.10g} ({most.why})"
    return ""


@cache
def collect_marks(cls: type) -> dict[str, tuple[object, ...]]:
    """Return what the annotation of each field says beside its type: ranges and the line of help."""
    return {name: getattr(hint, "__metadata__", ())
            for name, hint in typing.get_type_hints(cls, include_extras=True).items()}


@cache
def make_adapter(cls: type) -> TypeAdapter[object]:
    """Return what checks values for a class."""
    from pydantic import TypeAdapter
    return TypeAdapter(cls)


def is_plain(value: object) -> bool:
    """Say whether JSON can hold a value."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def shorten_value(value: object) -> str:
    """Return a value as text of at most 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def join_path(where: str, name: object) -> str:
    """Return the dotted path of a setting in a section."""
    shown = str(name) if str(name).isprintable() else repr(name)
    return f"{where}.{shown}" if where else shown


def list_setting_names(cls: type) -> list[str]:
    """List the settings of a class, in the order in which they are declared."""
    return [f.name for f in dataclasses.fields(cls) if is_setting(f)]


@cache
def list_helps(cls: type) -> dict[str, str]:
    """Return the line of help on each setting of a class, "" for one without."""
    return {name: next((mark for mark in collect_marks(cls)[name] if isinstance(mark, str)), "")
            for name in list_setting_names(cls)}


def is_setting(field: dataclasses.Field[object]) -> bool:
    """Say whether configurations can name a field."""
    return field.init and field.metadata.get("setting", True)


def describe_unknown_setting(cls: type, key: str, where: str, places: Mapping[str, type] | None = None) -> str:
    """Return what to say of a key that is not a setting of a class: its new name, or the settings that there are, with
    the one that was probably meant (`places`: see `make_settings`)."""
    new = getattr(cls, "renamed", {}).get(key)
    if new:
        return f"{join_path(where, key)} is called {join_path(where, new)} since version 0.2"
    first, _, rest = str(key).partition(".")
    if rest and all(rest.split(".")) and join_path(where, first) in (places or {}):
        nested = rest.replace(".", ": {") + ": ...}" + rest.count(".") * "}"
        return f"{join_path(where, key)}: a file and a mapping nest their settings; write {first}: {{{nested}"
    owner = getattr(cls, "called", None) or getattr(cls, "title", None) or cls.__name__
    close = find_close_settings(str(key), list_helps(cls), {
        join_path(place, name): said for place, other in (places or {}).items() if other is not cls
        for name, said in list_helps(other).items()})
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    known = ", ".join(list_setting_names(cls)) or "none"
    return f"{join_path(where, key)} is not a setting of {owner}; its settings are {known}{hint}"


def describe_invalid_setting(error: ErrorDetails, where: str, cls: type, values: Json) -> tuple[str, str]:
    """Return "path = value: " and what is wrong, for an error of pydantic about values of a class."""
    inner = list_keys(error["loc"], cls, values)
    path = ".".join(filter(None, [where, *inner]))
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    for theirs, ours in PYDANTIC_WORDS.items():
        message = message.replace(theirs, ours)
    if error["type"] == "missing":
        return f"{path} is missing and has no default: ", "set it"
    # the error is one of __post_init__, which names the setting itself
    if error["type"] == "value_error" and not inner:
        return join_path(where, ""), message
    limits = [mark for name in inner[:1] for mark in collect_marks(cls).get(name, ()) if isinstance(mark, AtMost)]
    why = f" ({limits[0].why})" if limits and error["type"] == "less_than_equal" else ""
    return f"{path} = {shorten_value(error['input'])}: ", message + why


def list_keys(loc: tuple[int | str, ...], cls: type, values: Json) -> list[str]:
    """Return the parts of a place in a class's values that are keys or positions: pydantic also names the types that it
    tries there."""
    found: list[str] = []
    for part in loc:
        if isinstance(values, dict) and part in values:
            found, values = [*found, str(part)], values[part]
        elif isinstance(part, int) or not found and part in list_setting_names(cls):
            at_hand = isinstance(values, list) and isinstance(part, int) and part < len(values)
            found, values = [*found, str(part)], values[part] if at_hand else None
    return found


class TrainSettings(Protocol):
    """The settings of local training, see config.schema.Train: packages below the configuration know them by this."""
    @property
    def batch(self) -> int: """Return the samples of a step."""
    @property
    def lr(self) -> float: """Return the learning rate."""
    @property
    def lr_decay(self) -> float: """Return the factor on the learning rate after every round."""
    @property
    def optimizer(self) -> str: """Return what takes the steps: sgd, adam or adamw."""
    @property
    def momentum(self) -> float: """Return the momentum of local SGD."""
    @property
    def nesterov(self) -> bool: """Return whether the momentum is Nesterov's."""
    @property
    def weight_decay(self) -> float: """Return the strength of the pull of all weights to 0."""
    @property
    def epochs(self) -> int: """Return the local epochs of a round."""
    @property
    def steps(self) -> int | None: """Return the local steps that replace the epochs; None if epochs count."""
    @property
    def participation(self) -> float | tuple[float, float]:
        """Return the share of clients that take part in a round, or the range that it is drawn from."""
