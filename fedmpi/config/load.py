"""YAML as fedmpi reads it: numbers as people write them, and nothing that runs code or fills the memory."""
from __future__ import annotations

import copy
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import yaml

from fedmpi.errors import BadInput

LARGEST = 20_000      # values in a file, aliases and merges expanded
LONGEST = 2**20       # characters of a file


class Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-3 is a number, only true and false are booleans, 010 and 1:30 are no integers, no key is
    given twice, and merges (`<<`) cannot blow up."""

    merged = 0      # entries of all mappings, merges expanded

    def flatten_mapping(self, node):
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > LARGEST:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {LARGEST:,} values; are there merges inside merges?", node.start_mark)

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.value != "<<"]
        twice = {str(k) for k, times in Counter(keys).items() if times > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} given twice", node.start_mark)
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    k: [(tag, rx) for tag, rx in v if not tag.endswith((":bool", ":int", ":float", ":timestamp"))]
    for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$", re.I), list("tTfF"))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][\d_]*)$"), list("-+0123456789"))
Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(
    r"^[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf)$|^\.nan$", re.I), list("-+.0123456789"))


def read_yaml(path: Path) -> str:
    """Return the text of a YAML file. Raises OSError, and ValueError when it is too long or no UTF-8."""
    with open(path, encoding="utf-8") as file:
        text = file.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters; is it the right file?")
    return text


@lru_cache(maxsize=256)      # the runs of a sweep share a file and most settings
def load(text: str):
    return yaml.load(text, Loader)


def parse(text: str):
    """Return what YAML text says. Raises ValueError for all that it may not be."""
    try:
        return copy.deepcopy(load(text))      # callers change it
    except ValueError:
        raise
    except (yaml.YAMLError, RecursionError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)) from None      # the latter four: `!!bool maybe` and the like


def refuse_endless(values) -> None:
    """Refuse what aliases have blown up, or made a part of itself."""
    left, waiting = LARGEST, [values]
    while waiting:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
        left -= 1 + len(inner)
        if left < 0:
            raise BadInput(f"the configuration holds more than {LARGEST:,} values; are there aliases inside aliases?")
        waiting.extend(inner)
