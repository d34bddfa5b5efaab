"""Site profiles: what `fedmpi submit --profile NAME|FILE` takes in place of a row of options.

A profile is a YAML file of options, by their names with _ in place of -, and two texts: `description`, and `tested`,
which says where the profile was tried, or begins with "no". What the command line says counts more. The options that
belong to one job (`name`, `out`, `array`) stand in no profile."""
from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from fedmpi.errors import BadInput
from fedmpi.paths import expand_user
from fedmpi.slurm.quoting import split_command

PROFILES_FOLDER = Path(__file__).parent / "profiles"
LARGEST_PROFILE_BYTES = 100_000
# option -> the type of its value, and the field of JobScript that it sets
FIELDS: dict[str, tuple[type, str]] = {
    "nodes": (int, "nodes"), "ranks": (int, "ranks"), "ntasks": (int, "ranks"), "cpus": (int, "cpus"),
    "gpus": (int, "gpus"), "gpu_request": (str, "gpu_request"), "time": (str, "time"), "partition": (str, "partition"),
    "account": (str, "account"), "at_once": (int, "at_once"), "signal": (str, "signal"),
    "command": (str, "command"), "launcher": (str, "launcher"), "mpi": (str, "mpi"), "restarts": (int, "restarts"),
    "chain": (int, "chain"), "setup": (str, "setup")}
WANTED = {int: "a whole number", str: "a text; put it into quotes"}


@dataclass(frozen=True)
class Profile:
    """A site's options: more for sbatch in `options`, and in `fields` those fields of JobScript that it sets."""
    name: str
    description: str
    tested: str
    options: tuple[str, ...]
    fields: dict[str, object]

    @property
    def untested(self) -> bool:
        """Say whether nobody tried the profile at its site: `tested` is "no; WHY", or is left out."""
        return self.tested.partition(";")[0].strip().lower() in ("no", "not stated")


def list_profiles() -> list[str]:
    """Return the names of the profiles that come with fedmpi."""
    return sorted(path.stem for path in PROFILES_FOLDER.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """Read a profile.

    Args:
        name: one of `list_profiles`, or the path of a file: with a / in it, or ending in .yaml or .yml.
    Raises:
        BadInput: if there is no such profile, or it says what no profile can say."""
    import yaml
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    if not is_path and name not in list_profiles():
        raise BadInput(f"--profile {name}: there are {', '.join(list_profiles())}; or give the path of a YAML file")
    path = expand_user(name, "--profile") if is_path else PROFILES_FOLDER / f"{name}.yaml"
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"--profile {name} is not a plain file; give a YAML file of options")
        if path.stat().st_size > LARGEST_PROFILE_BYTES:
            raise BadInput(f"--profile {name} is not a profile: it is larger than {LARGEST_PROFILE_BYTES:,} bytes")
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError, RuntimeError, RecursionError, yaml.YAMLError) as error:
        raise BadInput(f"--profile {name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise BadInput(f"--profile {name} is not a profile: write option: value on each line")
    description, tested = values.pop("description", None), values.pop("tested", None)
    if tested is False:
        # YAML reads a bare no as that
        tested = "no"
    options = values.pop("option", [])
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise BadInput(f"--profile {name}: option should be a list of texts, for example [--qos=long]")
    if {"ranks", "ntasks"} <= values.keys():
        raise BadInput(f"--profile {name}: ranks and ntasks are two names of one option; leave ntasks out")
    fields = dict(read_field(name, key, value) for key, value in values.items())
    return Profile(name, str(description or ""), str(tested or "not stated"), tuple(options), fields)


def read_field(profile: str, option: object, value: object) -> tuple[str, object]:
    """Return the field of JobScript that an option of a profile sets, and its value. Raises BadInput."""
    if option not in FIELDS:
        close = get_close_matches(str(option), FIELDS, 1)
        names = ", ".join([*FIELDS, "option"])
        raise BadInput(f"--profile {profile}: {option} is not an option of a profile; its options are {names}"
                       + (f" (did you mean {close[0]}?)" if close else ""))
    kind, field = FIELDS[str(option)]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadInput(f"--profile {profile}: {option} should be {WANTED[kind]}")
    return field, split_command(f"--profile {profile}: command", str(value)) if option == "command" else value
