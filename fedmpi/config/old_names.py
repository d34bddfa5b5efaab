"""Settings that an earlier version wrote, under the names of today.

A class of settings lists the names that it has given up as `renamed`, old name -> new name. A configuration of a user
that has an old name is refused with the new one (see fedmpi.settings); what a run of version 0.1 left is read."""
from __future__ import annotations

from fedmpi.config.schema import SECTIONS, Config
from fedmpi.json_values import JsonObject
from fedmpi.models.nets import Custom


def rename_settings(resolved: JsonObject) -> JsonObject:
    """Return the settings that a run wrote into its folder or checkpoint, each under its present name."""
    found = rename_section(Config, resolved)
    for name, cls in SECTIONS.items():
        if isinstance(found.get(name), dict):
            found[name] = rename_section(cls, found[name])
    if isinstance(found.get("model"), dict):
        found["model"] = rename_section(Custom, found["model"])
    return found


def rename_section(cls: type, section: JsonObject) -> JsonObject:
    """Return a section with the present names of its settings."""
    renamed = getattr(cls, "renamed", {})
    return {renamed.get(name, name): value for name, value in section.items()}
