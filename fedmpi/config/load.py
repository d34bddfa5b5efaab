"""YAML as fedmpi reads it: numbers as people write them. No input can run code or fill the memory."""
from __future__ import annotations

import copy
import os
import re
import stat
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path

import yaml

from fedmpi.errors import BadInput
from fedmpi.json_values import Json

# The most values in a file, with aliases and merges expanded.
MAX_VALUES = 20_000
# The most characters of a file.
MAX_CHARACTERS = 2**20
MERGE = "tag:yaml.org,2002:merge"


class Loader(yaml.SafeLoader):
    """Safe YAML with stricter rules: 1e-3 is a number, only true and false are booleans, 010 and 1:30 are not
    integers, a key may be given once, and merges (`<<`) cannot expand without limit."""

    # entries of all mappings, each time that they are read or merged
    merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Add what a mapping merges. A key has its own value before a merged one, and that of an earlier mapping in
        a list of merges before that of a later one. Raises ConstructorError if a key is given twice, if what is
        merged is not a mapping, or if there are too many entries.

        This is not left to PyYAML, whose 6.0.4 prefers the later mapping (its issue 953) and whose rules cannot see
        whether a key was given twice or merged."""
        marks: list[tuple[Hashable, yaml.Mark]] = [("<<", key.start_mark) for key, _ in node.value if key.tag == MERGE]
        merges = [value for key, value in node.value if key.tag == MERGE]
        # Before the merges are followed: a mapping may merge itself.
        node.value = [(key, value) for key, value in node.value if key.tag != MERGE]
        own = self.key_entries(node)
        marks += [(key, entry[0].start_mark) for key, entry in own]
        firsts: dict[Hashable, yaml.Mark] = {}
        for key, mark in marks:
            if (first := firsts.setdefault(key, mark)) is not mark:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} given twice, first in line {first.line + 1}", mark)
        entries: dict[Hashable, tuple[yaml.Node, yaml.Node]] = {}
        for value in merges:
            mappings = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for mapping in reversed(mappings):
                if not isinstance(mapping, yaml.MappingNode):
                    raise yaml.constructor.ConstructorError(
                        None, None, "<< takes a mapping or a list of mappings", mapping.start_mark)
                self.flatten_mapping(mapping)
                entries.update(self.key_entries(mapping))
        entries.update(own)
        node.value = list(entries.values())

    def key_entries(self, node: yaml.MappingNode) -> list[tuple[Hashable, tuple[yaml.Node, yaml.Node]]]:
        """Return each key of a mapping beside its entry. Raises ConstructorError if the file has too many entries."""
        self.merged += len(node.value)
        if self.merged > MAX_VALUES:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MAX_VALUES:,} values; are there merges inside merges?", node.start_mark)
        return [(self.construct_object(entry[0], deep=True), entry) for entry in node.value]


Loader.yaml_implicit_resolvers = {
    k: [(tag, rx) for tag, rx in v if not tag.endswith((":bool", ":int", ":float", ":timestamp", ":value"))]
    for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$", re.I), list("tTfF"))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][\d_]*)$"), list("-+0123456789"))
Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(
    r"^[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)$|^\.nan$", re.I), list("-+.0123456789"))


class Dumper(yaml.SafeDumper):
    """Quotes every text that `Loader`, or another reader of YAML, would take for something else, such as "1e5"."""


Dumper.yaml_implicit_resolvers = {
    first: [resolver for kind in (yaml.SafeDumper, Loader) for resolver in kind.yaml_implicit_resolvers.get(first, [])]
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | Loader.yaml_implicit_resolvers.keys()}


def format_yaml(value: object, in_one_line: bool = False) -> str:
    """Return YAML text that `parse_yaml` reads as the same value: as a file, or in one line by the alphabet."""
    if not in_one_line:
        return yaml.dump(value, Dumper=Dumper, sort_keys=False)
    text = yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=MAX_CHARACTERS)
    return text.removesuffix("\n").removesuffix("\n...")


def read_yaml(path: Path) -> str:
    """Return the text of a YAML file. Raises OSError, and ValueError if it is too long, not UTF-8 or a device."""
    mode = os.stat(path).st_mode
    # The shell's `<(command)` is a pipe below /dev. One with a name of its own would be waited for.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode) and str(path).startswith("/dev/")):
        raise ValueError("it is not a regular file")
    with open(path, encoding="utf-8") as file:
        text = file.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"it has more than {MAX_CHARACTERS:,} characters; is it the right file?")
    return text


# The runs of a sweep share a file and most settings.
@lru_cache(maxsize=256)
def parse_once(text: str) -> Json:
    """Return what YAML text says; callers must not change it."""
    return yaml.load(text, Loader)


def parse_yaml(text: str) -> Json:
    """Return what YAML text says, as a copy that callers may change. Raises ValueError if it is not valid."""
    try:
        return copy.deepcopy(parse_once(text))
    except ValueError:
        raise
    # PyYAML raises the last four for texts such as `!!bool maybe`.
    except (yaml.YAMLError, RecursionError, LookupError, TypeError, AttributeError, OverflowError) as error:
        tab = "; indent with blanks, not with tabs" if "'\\t' that cannot start" in str(error) else ""
        raise ValueError(f"{error}{tab}") from None


def refuse_endless(values: object) -> None:
    """Raise BadInput if aliases have expanded without limit, or made a value a part of itself."""
    left = MAX_VALUES
    waiting = [values]
    while waiting:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        left -= 1 + len(inner)
        if left < 0:
            raise BadInput(f"the configuration has more than {MAX_VALUES:,} values; are there aliases inside aliases?")
        waiting.extend(inner)
