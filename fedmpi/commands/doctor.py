"""Check whether this machine, or this job, is fit for runs. Each check ends with `ok`, or a problem and its remedy.

All ranks take part, and rank 0 prints. Nothing stays on the disk."""
from __future__ import annotations

import os
import platform
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmpi import __version__, errors, registry
from fedmpi.comm.launcher import list_cores, reports_refusal
from fedmpi.comm.mpi_world import open_world
from fedmpi.comm.transport import Transport
from fedmpi.commands.doctor_checks import BYTES, is_intact, measure_collectives, write_trial_file
from fedmpi.config.schema import Config, Data
from fedmpi.context import RankContext
from fedmpi.data.file_states import are_filled
from fedmpi.errors import BadInput, FedmpiError
from fedmpi.json_values import JsonObject
from fedmpi.paths import expand_user, shorten_path
from fedmpi.progress import write_stdout
from fedmpi.ranks import format_hosts, gather_objects, read_package_version
from fedmpi.session import explain_failure, share_text
from fedmpi.storage.atomic import describe_reason
from fedmpi.text import count_words, format_pairs, format_spans, printable

if TYPE_CHECKING:
    import torch

TRIAL_FILE = "trial.h5"
# A disk with fewer free bytes is called full.
MIN_FREE_BYTES = 1 << 30
# what the MPI library says of CUDA
AWARE = {True: "yes", False: "no", None: "it does not tell"}


class Check(NamedTuple):
    """One finding: `problem` says what is wrong and what to do about it, `more` has the lines below it."""
    name: str
    facts: str
    problem: str = ""
    more: str = ""

    def __str__(self) -> str:
        line = f"{self.facts}: {f'problem: {self.problem}' if self.problem else 'ok'}"
        return printable("\n".join(filter(None, [format_pairs([(self.name.ljust(11), line)]),
                                                 textwrap.indent(self.more, " " * 13)])))


def doctor_command(folder: str) -> int:
    """Check everything on all ranks. Return 0 if all is well and 1 otherwise, the same on every rank."""
    try:
        world = open_world()
    # Every process believes that it is rank 0, so one of them prints.
    except BadInput as error:
        if reports_refusal():
            print(Check("launch", "refused", str(error)))
        return errors.FAILED
    try:
        code = examine(world, folder)
        world.close()
        return code
    except BaseException as error:
        world.fail(*explain_failure(world, RankContext(), error))
        raise


def examine(world: Transport, folder: str) -> int:
    """Run the checks in the order in which ranks need each other; rank 0 prints each as it comes."""
    from fedmpi.engines.gpu_card import choose_device
    device = choose_device(Config(), world, share_text(world, world.host), hosts=world.rank > 0 or world.size == 1)
    ranks, problems = gather_objects(world, collect_facts(world, device)), 0
    for check in chain(check_ranks(world, ranks), check_disk(world, folder), check_collectives(world),
                       check_gpu_memory(world, device), check_data(world)):
        write_stdout(f"{check}\n")
        problems += bool(check.problem)
    if world.rank == 0:
        write_stdout("all is well\n" if not problems else f"{count_words(problems, 'problem')}\n")
    return int(share_text(world, str(errors.FAILED if problems else errors.FINISHED)))


def collect_facts(world: Transport, device: torch.device) -> JsonObject:
    """Collect what this rank knows of itself and of the device that a run would give it."""
    import torch
    name, problem = describe_device(device)
    return {"host": world.host, "device": name, "device_problem": problem, "cores": list_cores(),
            "threads": torch.get_num_threads(), "versions": list_versions()}


def list_versions() -> str:
    """Return the versions of Python and of the libraries that a run uses."""
    import h5py
    import torch
    return (f"fedmpi {__version__}, Python {platform.python_version()}, torch {torch.__version__}, numpy "
            f"{np.__version__}, h5py {h5py.__version__} (HDF5 {h5py.version.hdf5_version}), mpi4py "
            f"{read_package_version('mpi4py', 'missing')}")


def describe_device(device: torch.device) -> tuple[str, str]:
    """Return what a device is, and what is wrong with it ("" if nothing is)."""
    import torch
    if device.type == "cpu":
        hidden = Path("/dev/nvidia0").exists() and "CUDA_VISIBLE_DEVICES" not in os.environ
        return "cpu", ("this host has a GPU that PyTorch cannot use: install a torch build for its driver"
                       if hidden and not torch.cuda.is_available() else "")
    try:
        torch.ones(8, 8, device=device).matmul(torch.ones(8, 8, device=device)).sum().item()
    # A torch build without CUDA raises AssertionError.
    except (RuntimeError, AssertionError) as error:
        return str(device), f"{str(error).splitlines()[0]}; check nvidia-smi on this host, or set device=cpu"
    return f"{device} {torch.cuda.get_device_name(device)}", ""


def check_ranks(world: Transport, ranks: list[JsonObject]) -> Iterator[Check]:
    """Yield the checks of what the ranks told about themselves (rank 0)."""
    if world.rank:
        return
    odd = [f"rank {r} on {them['host']} has {them['versions']}" for r, them in enumerate(ranks)
           if them["versions"] != ranks[0]["versions"]]
    yield Check("versions", ranks[0]["versions"], f"{odd[0]}; install the same on all nodes" if odd else "")
    level = f", thread level {world.thread_level}" if world.size > 1 else ""
    aware = "" if world.library.startswith("none") else f", CUDA-aware: {AWARE[world.cuda_aware]}"
    library = " ".join(world.library.split())
    yield Check("launch", f"{count_words(world.size, 'rank')}, MPI library {library}{level}{aware}")
    hosts = {them["host"] for them in ranks}
    yield Check("hosts", count_words(len(hosts), "host"), find_devices_problem(ranks), format_hosts(ranks))


def find_devices_problem(ranks: list[JsonObject]) -> str:
    """Return what is wrong with the devices and the cores of the ranks ("" if nothing is)."""
    found = [f"rank {r} on {them['host']}: {them['device_problem']}" for r, them in enumerate(ranks)
             if them["device_problem"]]
    for host in {them["host"] for them in ranks}:
        bound = [them["cores"] for them in ranks[len(ranks) > 1:] if them["host"] == host]
        if len(bound) > 1 and len(bound[0]) == 1 and bound.count(bound[0]) == len(bound) and (
                os.cpu_count() or 1) > 1:
            found.append(f"all {len(bound)} working ranks of {host} are bound to core {bound[0][0]}; give each its own "
                         "(MPICH: mpiexec -bind-to core; Slurm: --cpus-per-task)")
    return "; ".join(found)


def check_disk(world: Transport, folder: str) -> Iterator[Check]:
    """Yield the checks of the folder: rank 0 writes a file as it writes a checkpoint, and the others must see it."""
    trial, checks = (None, []) if world.rank else write_trial(expand_user(folder, "--folder").absolute())
    path = share_text(world, str(trial / TRIAL_FILE) if trial else "")
    blind = [r for r, sees in enumerate(gather_objects(world, bool(path) and is_intact(path))) if not sees]
    if trial:
        shutil.rmtree(trial, ignore_errors=True)
    yield from checks
    if world.size > 1 and path and world.rank == 0:
        yield Check("shared", "a file of rank 0 read by the others", "" if not blind else
                    f"ranks {format_spans(blind)} do not see it; choose a folder on a file system that all nodes share")


def write_trial(folder: Path) -> tuple[Path | None, list[Check]]:
    """Write a trial file in a new folder below `folder`, or below the part of it that exists.

    Returns:
        The new folder, None if nothing can be written, and the checks."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        return None, [Check("folder", shorten_path(folder),
                            f"it cannot be looked at ({describe_reason(error)}); name another folder with --folder")]
    place = find_existing(folder)
    name = f"{place}" + (f" (for {folder}, which does not exist yet)" if place != folder else "")
    try:
        trial = Path(tempfile.mkdtemp(prefix=".fedmpi-doctor-", dir=place))
    except OSError as error:
        return None, [Check("folder", name,
                            f"nothing can be written there ({describe_reason(error)}); run where you may write, "
                            "or name a folder with --folder")]
    try:
        whole, flush = write_trial_file(trial / TRIAL_FILE)
    except FedmpiError as error:
        shutil.rmtree(trial, ignore_errors=True)
        why = describe_reason(error.__cause__) if error.__cause__ else str(error)
        return None, [Check("folder", name, f"an HDF5 file cannot be written there ({why}); free some space, or name "
                                            "another folder with --folder")]
    free = shutil.disk_usage(trial).free
    return trial, [
        Check("folder", f"{name}: an HDF5 file of 4 MiB written, verified and renamed in {1e3 * whole:.0f} ms "
                        f"({1e3 * flush:.1f} ms of it for fsync)"),
        Check("disk", f"{free / 2**30:.1f} GiB free in {place}", "" if free > MIN_FREE_BYTES else
              "a full disk ends a run; free some space, or name another folder with --folder")]


def check_collectives(world: Transport) -> Iterator[Check]:
    """Yield the check of broadcast and reduce; there is none for a single rank."""
    if world.size == 1:
        return
    ranks = world.gather(np.array([measure_collectives(world)], float), np.ones(world.size, np.int64))
    # Only rank 0 knows the ranks.
    if ranks is not None:
        down, up = ranks[:, :2].max(0)
        facts = f"broadcast of 4 MiB float32 {format_speed(down)}, reduce of 4 MiB int64 {format_speed(up)}"
        yield Check("collectives", facts, "" if ranks[:, 2].all() else
                    "the numbers that arrive are wrong: mpiexec and the MPI library, or the libraries of the nodes, do "
                    "not fit together; use one MPI on all nodes, and its own mpiexec")


def check_gpu_memory(world: Transport, device: torch.device) -> Iterator[Check]:
    """Yield the check whether MPI can read GPU memory, which a run makes before it relies on it.

    There is no check for a single rank, without a GPU, or unless the library says on some rank that it can."""
    from fedmpi.comm.gpu_probe import any_rank_is_cuda_aware, probe_gpu_memory
    from fedmpi.comm.gpu_staging import wants_gpu_direct
    if world.size == 1 or not any_rank_is_cuda_aware(world):
        return
    meant = wants_gpu_direct("auto", world, device)
    found = gather_objects(world, [meant, probe_gpu_memory("auto", world, device, meant)[1]])
    whys = [f"rank {r}: {why}" for r, (_, why) in enumerate(found) if why]
    if any(meant for meant, _ in found):
        yield Check("GPU memory", "a megabyte sent through MPI straight from each GPU", "" if not whys else
                    f"{'; '.join(whys)}; runs go by way of the host's memory there, which is slower and as right; for "
                    "speed let a node's ranks see all its GPUs, or use an MPI library built for this CUDA")


def format_speed(seconds: float) -> str:
    """Return the time of a collective of BYTES, and its rate."""
    return f"{1e3 * seconds:,.1f} ms ({BYTES / seconds / 1e6:,.0f} MB/s)"


def check_data(world: Transport) -> Iterator[Check]:
    """Yield the check of the data sets that need no network."""
    root = Path(Data.root).expanduser()
    seen = gather_objects(world, os.path.isdir(root))
    if world.rank:
        return
    here = [name for name in registry.list_available("datasets") if is_present(name, root)]
    blind = [r for r, sees in enumerate(seen) if sees != seen[0]]
    state = "" if seen[0] else ", made when needed"
    problem = f"ranks {format_spans(blind)} see another one; set data.root to a folder that all nodes share"
    yield Check("data", f"{root} (data.root{state}); without a network there are {', '.join(here)}",
                problem if blind else find_why_unwritable(root))


def find_existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that can be seen."""
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def find_why_unwritable(folder: Path) -> str:
    """Say why nothing can be written in a folder, which may have to be made first, and what to do; "" if it can."""
    try:
        with tempfile.TemporaryDirectory(dir=find_existing(folder)):
            return ""
    except OSError as error:
        return (f"nothing can be written there ({describe_reason(error)}); let the runs set data.cache to a folder "
                "that can be written and that all nodes share, and data.root, too, unless the data are there")


def is_present(name: str, root: Path) -> bool:
    """Say whether a data set lies below `root` with all files that its `load` reads, or needs none there."""
    from fedmpi.data import public_datasets, sources
    try:
        source = sources.make_source(name, None)
        if isinstance(source, public_datasets.PublicDataset):
            return source.is_here(root)
        return are_filled(sources.list_data_files(name, root, source=source))
    # It wants data.file or is not there; or a plug-in cannot be loaded, and `fedmpi datasets` says why.
    except Exception:
        return False
