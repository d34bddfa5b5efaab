"""The hash of code that has no file, as in a notebook: what a class does, told by its functions and their values.

What counts is the same in every process and wherever the text stands: no lines, no addresses, no order of sets. Of
what is defined in a file only the name counts, or the file if it is the user's own."""
from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import PurePath
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType

import numpy as np

from fedmpi.errors import BadInput
from fedmpi.own_code.fingerprint import Fingerprint, find_home_modules, hash_module, hash_own_code
from fedmpi.own_code.places import PACKAGE_NAME, is_own_module
from fedmpi.text import drop_addresses

# Values that are told by their text.
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, EllipsisType, PurePath)
# Attributes that Python keeps of a class, and that say nothing of what it does, or say where it stands.
BOOKKEEPING = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__",
               "__static_attributes__", "__annotations__", "__annotate_func__", "__annotations_cache__"}
# Where a property, a static, class or bound method, a partial function or a cache keeps what it calls.
HOLDS = ("fget", "fset", "fdel", "func", "args", "keywords", "__func__", "__self__", "__wrapped__")
HOLDERS = (property, staticmethod, classmethod, MethodType, functools.partial, functools.partialmethod,
           functools.cached_property)
# What Python has for the file of `__main__` that it reads from standard input.
STANDARD_INPUT = "<stdin>"
# Instructions that read a name from the module.
READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def hash_class_without_file(cls: type) -> str:
    """Return a sha256 of the functions and values of a class and of those of its bases that have no file either, and of
    what these functions name: functions, classes, and values such as numbers, texts, lists and arrays.

    Raises BadInput if values are nested too deeply."""
    try:
        found = repr(Definitions().describe(cls))
    except RecursionError:
        raise BadInput(f"{cls.__qualname__}: names values that are nested too deeply to tell whether they change; "
                       "write the class to a file, or nest them less") from None
    return hashlib.sha256(found.encode(errors="surrogateescape")).hexdigest()


def hash_all_own_code(things: Iterable[object]) -> Fingerprint:
    """Return what `hash_own_code` does, but of code without a file, as in a notebook, `module:name` with a hash of what
    each class and function does. Where that is not known, as of values that are nested too deeply, the module has None.

    Raises BadInput as `hash_own_code` does."""
    things = [*things]
    found = hash_own_code(things)
    for module in [name for name, value in found.items() if value is None and has_no_file(name)]:
        parts = {f"{module}:{name_part(thing)}": thing for thing in things
                 if not isinstance(thing, str) and module in find_home_modules(thing)}
        with suppress(RecursionError):
            hashes = {name: hash_part_without_file(thing) for name, thing in parts.items()}
            found |= hashes
            if hashes:
                del found[module]
    return dict(sorted(found.items()))


def name_part(thing: object) -> str:
    """Return the name of a class or a function, or of what a partial function calls."""
    return name_part(thing.func) if isinstance(thing, functools.partial) else getattr(
        thing, "__qualname__", type(thing).__qualname__)


def hash_part_without_file(thing: object) -> str:
    """Return the sha256 of a class or function as `hash_class_without_file` does, with the types of its fields, too:
    they say which numbers are weights."""
    found = repr(Definitions(with_types=True).describe(thing))
    return hashlib.sha256(found.encode(errors="surrogateescape")).hexdigest()


def has_no_file(name: str | None) -> bool:
    """Say whether a module is one of a notebook, of standard input or of exec, and no part of Python."""
    if name is None or name.partition(".")[0] in (PACKAGE_NAME, *sys.builtin_module_names):
        return False
    module = sys.modules.get(name)
    # What Python brings without a file has been found in some way.
    found = getattr(module, "__spec__", None) is not None and name != "__main__"
    return getattr(module, "__file__", None) in (None, STANDARD_INPUT) and not found


class Definitions:
    """Describes classes, functions and values by nested lists of texts; each class and function once, since they may
    name each other."""

    def __init__(self, with_types: bool = False) -> None:
        # Whether the types of a class's fields count.
        self.with_types = with_types
        # By its address, each class and function with its number.
        self.known: dict[int, int] = {}
        # The addresses of the values that are being described, which may hold themselves.
        self.open: set[int] = set()

    def describe(self, value: object) -> object:
        """Return what a value is, in lists and texts."""
        if isinstance(value, PLAIN):
            return [describe_type(value), repr(value)]
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            contents = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            return [str(value.dtype), value.shape, hashlib.sha256(contents).hexdigest()]
        if isinstance(value, ModuleType | type | FunctionType):
            return self.describe_definition(value)
        if id(value) in self.open:
            return "itself"
        self.open.add(id(value))
        described = [describe_type(value), *self.describe_contents(value)]
        self.open.remove(id(value))
        return described

    def describe_alone(self, value: object) -> str:
        """Return what an element of a set is, as if it came first: a set of functions is ordered by their addresses,
        and classes and functions that they name would be numbered by this order."""
        known, self.known = self.known, self.known.copy()
        found = repr(self.describe(value))
        self.known = known
        return found

    def describe_contents(self, value: object) -> Iterator[object]:
        """Yield what a value of another kind consists of; nothing if that cannot be told."""
        if isinstance(value, list | tuple):
            yield from map(self.describe, value)
        elif isinstance(value, dict):
            yield from ([self.describe(key), self.describe(held)] for key, held in value.items())
        elif isinstance(value, set | frozenset):
            yield from (repr(self.describe(held)) for held in sorted(value, key=self.describe_alone))
        elif isinstance(value, CodeType):
            yield from self.describe_code(value)
        elif has_no_file(type(value).__module__):
            yield self.describe(type(value))
            yield self.describe(getattr(value, "__dict__", {}))
        elif isinstance(value, HOLDERS) or "__wrapped__" in getattr(value, "__dict__", ()):
            yield from (self.describe(getattr(value, name, None)) for name in HOLDS)
        elif isinstance(name := getattr(value, "__name__", None), str):
            # A function that is not written in Python.
            yield f"{getattr(value, '__module__', None)}.{name}"

    def describe_definition(self, thing: ModuleType | type | FunctionType) -> object:
        """Return what a module, class or function is: of one with a file its name, and the file if it is one's own."""
        module = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
        name = getattr(thing, "__qualname__", "")
        if isinstance(thing, ModuleType) or not has_no_file(module):
            return [module, name, sorted(hash_module(module).items()) if is_own_module(module) else []]
        if id(thing) in self.known:
            return self.known[id(thing)]
        self.known[id(thing)] = len(self.known)
        return [name, *(self.describe_class(thing) if isinstance(thing, type) else self.describe_function(thing))]

    def describe_class(self, cls: type) -> Iterator[object]:
        """Yield the bases of a class and its attributes."""
        yield from map(self.describe, (type(cls), *cls.__mro__[1:]))
        for name, value in sorted(vars(cls).items()):
            if name not in BOOKKEEPING:
                yield [name, self.describe(value)]
        # From Python 3.14 on, a type may name what is not there.
        with suppress(NameError):
            if self.with_types:
                yield [[name, describe_annotation(kind)] for name, kind in inspect.get_annotations(cls).items()]

    def describe_function(self, function: FunctionType) -> Iterator[object]:
        """Yield what a function does, its defaults, and what it names outside of itself."""
        yield self.describe(function.__code__)
        yield self.describe([function.__defaults__, function.__kwdefaults__, vars(function)])
        for cell in function.__closure__ or ():
            try:
                yield self.describe(cell.cell_contents)
            # The name has no value yet, or not any more.
            except ValueError:
                yield "empty"
        for name in sorted(find_global_names(function.__code__)):
            if name in function.__globals__:
                yield [name, self.describe(function.__globals__[name])]

    def describe_code(self, code: CodeType) -> Iterator[object]:
        """Yield what a piece of code does, without the lines where it stands."""
        yield [code.co_code.hex(), code.co_exceptiontable.hex(), code.co_names, code.co_varnames, code.co_cellvars,
               code.co_freevars, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags]
        yield from map(self.describe, code.co_consts)


def describe_annotation(kind: object) -> str:
    """Return the type of a field as text; without the addresses that lambdas in it have."""
    return drop_addresses(kind if isinstance(kind, str) else repr(kind))


def describe_type(value: object) -> str:
    """Return the name of a value's type with its module, unless that has no file."""
    kind = type(value)
    return kind.__qualname__ if has_no_file(kind.__module__) else f"{kind.__module__}.{kind.__qualname__}"


def find_global_names(code: CodeType) -> set[str]:
    """Return the names that a piece of code, or the functions in it, read from the module."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {step.argval for step in dis.get_instructions(code) if step.opname in READS_GLOBAL}.union(
        *map(find_global_names, inner))
