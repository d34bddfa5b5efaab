"""The types of values that JSON and YAML can hold, such as configurations, results and the books of a run."""
from typing import Any, TypeAlias

# Any: texts, numbers, lists and mappings, as deep as they may be. Only the code that reads a key knows what it holds.
Json: TypeAlias = Any
JsonObject: TypeAlias = dict[str, Json]
