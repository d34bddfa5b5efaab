"""What `fedmpi plan` and the dry run of a sweep plan: a configuration on its federation, which is prepared if it is not
there yet."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmpi.assembly import build_method, refuse_engine
from fedmpi.config.schema import Config, load_config
from fedmpi.data.federation import Federation, prepare_federation
from fedmpi.engines.engine_choice import choose_by_network
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.method import Method, State
from fedmpi.models.build import make_blank_samples
from fedmpi.server.client_selection import ClientSelector, make_client_selector


@dataclass(frozen=True)
class Case:
    """What is planned: a configuration on its federation, and one client's first state and Up."""
    config: Config
    federation: Federation
    method: Method
    shared: State
    mine: State
    up: State
    # the one on CPUs, if the configuration leaves it open
    engine: str
    # selects participants, and keeps their simulated time
    client_selector: ClientSelector


def prepare_case(config_path: str | Mapping[str, object], overrides: Sequence[str] | Mapping[str, object]) -> Case:
    """Read a configuration, prepare its federation and rehearse a client. Raises BadInput."""
    config = load_config(config_path, overrides)
    federation = Federation(prepare_federation(config.data, config.seed))
    method = build_method(config, federation, rehearse=True)
    refuse_engine(config, federation, method)
    client_selector = make_client_selector(config, federation, method)
    shared, mine = method.init(federation.clients)
    sample = make_blank_samples(federation.shape, federation.dtype)
    up = rehearse_loop(method, shared, mine, sample)[1]
    engine = (config.engine if config.engine != "auto" else
              choose_by_network(method, shared, mine, sample, config.data.new_clients)[0])
    return Case(config, federation, method, shared, mine, up, engine, client_selector)
