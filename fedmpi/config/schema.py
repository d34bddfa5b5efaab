"""The configuration: a YAML file is a diff of the defaults below; `key=value` on the command line is a diff of it."""
from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from fedmpi import registry
from fedmpi.config.data_settings import Data as Data
from fedmpi.config.evaluation import Evaluate as Evaluate
from fedmpi.config.evaluation import StopSettings as StopSettings
from fedmpi.config.load import parse_yaml, read_yaml, refuse_endless
from fedmpi.config.origins import name_origins
from fedmpi.config.overrides import apply_overrides, name_data_class, to_yaml_value
from fedmpi.config.source_settings import NamedSettings, build_source, refuse_taken_settings, separate_source
from fedmpi.config.train import Train as Train
from fedmpi.edge import Edge
from fedmpi.errors import BadInput
from fedmpi.faults import Attack, Faults
from fedmpi.json_values import Json, JsonObject
from fedmpi.models.nets import Custom
from fedmpi.own_code.failures import blame_own_code
from fedmpi.own_code.places import is_built_in
from fedmpi.participation import Availability, Stragglers, list_participation_problems
from fedmpi.settings import (
    AtMost,
    Ge,
    Gt,
    Le,
    Lt,
    describe_unknown_setting,
    list_setting_names,
    make_settings,
    shorten_value,
)
from fedmpi.shipped import find_shipped, name_hint
from fedmpi.task import TASKS, MeasureNames


@dataclass(frozen=True)
class Checkpoint:
    """When a run saves its state, and how many states it keeps."""
    title = "checkpoint"
    every: Annotated[int, Ge(0), "rounds between checkpoints; 0: save only as minutes says, at the end and on a "
                     "signal"] = 10
    minutes: Annotated[float, Ge(0), "also save this many minutes after the last checkpoint; 0: never"] = 10.
    grace: Annotated[float, Ge(0), "seconds after a signal in which the round may finish; then it is abandoned"] = 90.
    keep: Annotated[int, Ge(1), "number of checkpoints to keep, besides the best one"] = 2
    asynchronous: Annotated[bool, "train on while a checkpoint is written; a kill meanwhile loses it alone"] = False
    failure: Annotated[Literal["stop", "continue"], "if a checkpoint or a measure cannot be written: stop, or "
                       "warn, continue and try again at the next one"] = "stop"


@dataclass(frozen=True)
class Server:
    """What rank 0 does with the updates of the clients."""
    title = "server"
    renamed = {"robust": "aggregation"}
    hosts_clients: Annotated[bool, "rank 0 trains clients too; it always does if it is the only rank"] = False
    reduce: Annotated[Literal["exact", "float32"],
                      "exact: sums have the same bits on any number of ranks; float32: half the bytes"] = "exact"
    aggregation: Annotated[Literal["mean", "median", "trimmed_mean"], "how updates are averaged, coordinate by "
                           "coordinate; median and trimmed_mean count all clients alike"] = "mean"
    trim: Annotated[float, Ge(0), Lt(.5), "share of clients that trimmed_mean drops at either end, rounded up"] = .1
    clip_norm: Annotated[float | None, Gt(0), "longer updates are shortened to this norm; null: no limit"] = None


@dataclass(frozen=True)
class Comm:
    """How ranks communicate."""
    title = "comm"
    timeout: Annotated[float, Ge(0), "end the job if a rank makes no progress for this many seconds; 0: never; "
                                     "choose more than a client, or a step of the server, takes"] = 1800.
    cuda_aware: Annotated[Literal["auto", "on", "off"], "let MPI read and write GPU memory; auto: if the library "
                          "says that it can; off: copy through pinned host memory"] = "auto"


@dataclass(frozen=True)
class StateSettings:
    """Memory for the private states of the clients."""
    title = "state"
    memory: Annotated[float, Gt(0), "GiB per rank for private states before they spill, and as many for samples; on "
                      "a GPU each has at most a quarter of the rank's share of it"] = 8.
    scratch: Annotated[str | None, "folder for states that spill; default: the system's temporary folder"] = None


@dataclass(frozen=True)
class Config:
    """All settings of a run."""
    title = "the configuration"
    renamed = {"graphs": "cuda_graphs"}
    seed: Annotated[int, Ge(0), Le(2**63 - 1), "seed for initial weights, data split, sampling and batches"] = 0
    rounds: Annotated[int, Ge(1), "number of communication rounds T"] = 100
    data: Data = field(default_factory=Data)
    model: Annotated[NamedSettings, "network; `fedmpi models` lists them"] = "mlp"
    method: Annotated[NamedSettings, "method; `fedmpi methods` lists them"] = "fedavg"
    train: Train = field(default_factory=Train)
    evaluate: Evaluate = field(default_factory=Evaluate)
    stop: StopSettings | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    server: Server = field(default_factory=Server)
    comm: Comm = field(default_factory=Comm)
    state: StateSettings = field(default_factory=StateSettings)
    edge: Edge | None = None
    availability: Availability | None = None
    stragglers: Stragglers | None = None
    faults: Faults = field(default_factory=Faults)
    attack: Attack | None = None
    engine: Annotated[Literal["auto", "loop", "vmap"],
                      "how a rank trains its clients: one by one (loop) or many at once (vmap)"] = "auto"
    cuda_graphs: Annotated[Literal["auto", "on", "off"],
                           "vmap records steps as CUDA graphs and replays them; auto: on a GPU, from 8 "
                           "steps on"] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], "auto: the GPU of this local rank, if there is one"] = "auto"
    precision: Annotated[Literal["float32", "tf32", "bf16"],
                         "precision of matrix products; tf32 (GPUs) and bf16 are faster and less exact"] = "float32"
    threads: Annotated[int, Ge(1), AtMost(1024, "a rank computes on one node"), "CPU threads per rank"] = 1
    placement: Annotated[Literal["balanced", "blocks", "shuffled"],
                         "which rank hosts which client; balanced: by samples, then by measured speed"] = "balanced"

    @property
    def evaluated_on(self) -> tuple[str, ...]:
        """The parts that clients are evaluated on: that of `evaluate.on`; with test samples also the validation
        samples, if there are any. With `evaluate.on: validation` nothing looks at the test samples."""
        return (self.evaluate.on, *["validation"] * (self.evaluate.on == "test" and self.data.validates))

    @property
    def measure_names(self) -> MeasureNames:
        """Return the names by which this run's files call the measures of its clients."""
        return MeasureNames(TASKS[self.data.task], self.evaluate.columns)

    def evaluates(self, t: int) -> bool:
        """Return whether clients are evaluated after round t, from 0."""
        every, embeddings = self.evaluate.every, self.evaluate.embeddings
        return t + 1 == self.rounds or bool(every and (t + 1) % every == 0) or t + 1 in embeddings


SECTIONS = {"data": Data, "train": Train, "evaluate": Evaluate, "stop": StopSettings, "checkpoint": Checkpoint,
            "server": Server, "comm": Comm, "state": StateSettings, "edge": Edge, "availability": Availability,
            "stragglers": Stragglers, "faults": Faults, "attack": Attack}
# Sections of the form {name: ..., setting: ...}.
NAMED = {"model": "models", "method": "methods"}
MUST_HAVE = {"models": "build", "methods": "client", "partitions": "assign"}


def load_config(source: str | Path | Mapping[str, object],
                overrides: Sequence[str] | Mapping[str, object] = (), origin: str | None = None) -> Config:
    """Read a configuration, apply overrides and check everything.

    Args:
        source: a YAML file, the name of one that came with fedmpi, or the settings themselves
        overrides: see `apply_overrides`
        origin: what errors call the place that the overrides come from; "": nothing; None: the command line, or
            keyword arguments if they are a mapping

    Raises:
        BadInput: with a line for each problem that is found; of a file it begins with the file or with the place of
            the override. Values are looked at only if a section has no unknown keys, and whether sections fit together
            only if each is right by itself."""
    if isinstance(source, Mapping):
        return resolve(apply_overrides(to_yaml_value(name_data_class(source)), overrides))
    path = find_shipped(source, "configs")
    try:
        text = read_yaml(path)
        values = parse_yaml(text)
    except OSError as error:
        raise BadInput(f"{path}: cannot read the configuration: {error.strerror}{name_hint(source, 'configs')}"
                       ) from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    try:
        return resolve(apply_overrides({} if values is None else values, overrides))
    except BadInput as error:
        if origin is None:
            origin = "keyword arguments" if isinstance(overrides, Mapping) else "command line"
        raise name_origins(error, str(path), list_problems(parse_yaml(text)), overrides, origin) from error.__cause__


def list_problems(values: Json) -> list[str]:
    """Return a line for each problem of a configuration without overrides."""
    try:
        resolve(apply_overrides({} if values is None else values, ()))
    except BadInput as error:
        return str(error).splitlines()
    return []


def resolve(values: JsonObject) -> Config:
    """Build a Config from nested mappings. Each section is checked against its own class.

    Raises:
        BadInput: with a line for each problem that is found, see `load_config`."""
    refuse_endless(values)
    problems: list[BadInput] = []
    built = dict(values)

    def attempt(function: Callable[..., NamedSettings], *args: object) -> NamedSettings:
        try:
            return function(*args)
        except BadInput as error:
            problems.append(error)
            return None

    places: dict[str, type] = {"": Config, **SECTIONS}
    for name, kind in NAMED.items():
        built[name] = attempt(build_named_section, kind, values.get(name, {}), name, getattr(Config, name), places)
    partition = values["data"].get("partition") if isinstance(values.get("data"), dict) else None
    chosen = attempt(build_named_section, "partitions", {} if partition is None else partition, "data.partition",
                     Data.partition, places)
    # The settings of a plain nn.Module are not known.
    places |= {name: type(settings) for name, settings in (*((k, built[k]) for k in NAMED), ("data.partition", chosen))
               if settings and not isinstance(settings, Custom)}
    of_all = list_setting_names(Data)
    data, of_source = separate_source(values.get("data"), of_all, Data.name)
    for name, cls in SECTIONS.items():
        # A resolved configuration has null for a section that is left out.
        if values.get(name, ...) is None and getattr(Config, name, ...) is None:
            built[name] = None
        elif name in values:
            given = values[name]
            built[name] = attempt(make_settings, cls, data if name == "data" else given, name, places)
    source = attempt(build_source, data, of_source, Data.name, of_all)
    if partition is None and (holder := getattr(source, "client", None)):
        problems.append(BadInput(f"data.client = {holder}: the column says who holds a row, but data.partition is not "
                                 "given and would draw that anew; set data.partition=natural, or another one"))
    top = attempt(make_settings, Config, {k: v for k, v in built.items() if k not in SECTIONS and k not in NAMED}, "",
                  places)
    if problems:
        raise next((e for e in problems if e.__cause__), problems[0]).reword("\n".join(map(str, problems)))
    sections = {k: built.get(k, getattr(top, k)) for k in (*SECTIONS, *NAMED)}
    sections["data"] = dataclasses.replace(sections["data"], partition=chosen, source=source)
    config = dataclasses.replace(top, **sections)
    config.train.refuse_rounds(config.rounds)
    if found := list_participation_problems(config.stragglers, config.availability, config.edge is not None):
        raise BadInput("\n".join(found))
    return config


def build_named_section(kind: str, value: Json, where: str, default: str, places: Mapping[str, type]) -> NamedSettings:
    """Build the settings of a section `{name: ..., ...}`, or of a bare name, with the class of that name (`places`: see
    `make_settings`)."""
    section = {"name": value} if isinstance(value, str) else value
    section = {"name": default, **section} if isinstance(section, dict) else {}
    if not isinstance(section.get("name"), str):
        raise BadInput(f"{where} = {shorten_value(value)}: give a name, or a mapping with a name and settings")
    cls = registry.find_class_of_setting(kind, section["name"], where)
    settings = {k: v for k, v in section.items() if k != "name"}
    # The settings of a plain nn.Module are its keyword arguments.
    if kind == "models" and not dataclasses.is_dataclass(cls):
        if old := [k for k in settings if k in Custom.renamed]:
            raise BadInput(describe_unknown_setting(Custom, old[0], where))
        own = {k: settings.pop(k) for k in Custom.OWN if k in settings}
        cls, settings = Custom, {"path": section["name"], "settings": settings, **own}
    if not dataclasses.is_dataclass(cls) or not hasattr(cls, MUST_HAVE[kind]):
        raise BadInput(f"{where}: {section['name']} is not a dataclass with a function `{MUST_HAVE[kind]}`, as "
                       f"{kind} must be")
    if kind == "methods" and not hasattr(cls, "with_model"):
        raise BadInput(f"{where}: {section['name']} is not derived from fedmpi.method.Method, as methods must be")
    refuse_taken_settings(cls, where)
    with blame_own_code(f"{where}: {section['name']}", always=not is_built_in(cls)):
        return make_settings(cls, settings, where, places)


def to_plain(config: Config) -> JsonObject:
    """Return the resolved configuration as nested plain values, with names, in a stable order."""
    def section(value: NamedSettings, name: str | None = None) -> JsonObject:
        entries = {k: getattr(value, k) for k in list_setting_names(type(value))}
        if isinstance(value, Custom):
            return {"name": name, **value.settings, **value.own()}
        entries = {k: list(v) if isinstance(v, tuple) else v for k, v in entries.items()}
        return {"name": name, **entries} if name else entries

    out = {k: getattr(config, k) for k in list_setting_names(Config)}
    out |= {key: section(out[key]) if out[key] else None for key in SECTIONS}
    out["data"] |= section(config.data.source) if config.data.source else {}
    for key in NAMED:
        out[key] = section(out[key], find_name(out[key]))
    out["data"]["partition"] = section(config.data.partition, find_name(config.data.partition))
    return out


def find_name(settings: NamedSettings) -> str:
    """Return the name by which a configuration asks for this object of settings."""
    cls = type(settings)
    if cls.__module__.startswith("fedmpi.methods."):
        return cls.__module__.rpartition(".")[2]
    for home in registry.HOMES.values():
        module = sys.modules.get(home)
        names = [k for k, v in module.BUILT_IN.items() if v is cls] if module else []
        if names or cls.__module__ == home:
            return names[0] if names else settings.path
    return f"{cls.__module__}:{cls.__qualname__}"
