"""Client updates on their way to the server: attacks, norm clipping, and the check that numbers are finite.

A field of Up is an update of the field of Shared that has the same name and shape."""
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedmpi.comm import exact
from fedmpi.config.schema import Config
from fedmpi.data.federation import Federation
from fedmpi.engines.batch_plan import make_generator
from fedmpi.engines.rehearsal import rehearse_loop
from fedmpi.engines.trained_statistics import find_trained_net
from fedmpi.errors import BadInput
from fedmpi.faults import Attack
from fedmpi.method import Method, State
from fedmpi.models.build import make_blank_samples
from fedmpi.models.flat import Model

# Names the random stream of an attacker's noise.
ATTACK_STREAM = 0xA77A


def alter_update(config: Config, model: Model, client: int, attacks: bool, shared: State, up: State, round: int
                 ) -> State:
    """Return what the server takes as a client's update of this round: after an attack, and clipped."""
    attack, longest = config.attack, config.server.clip_norm
    if attack is not None and attack.kind != "label_flip" and attacks:
        up = attack_update(attack, shared, up, make_generator(config.seed, round, client, ATTACK_STREAM))
        clamp_variances(model, up)
    return up if longest is None else clip_update(shared, up, longest)


def find_origins(shared: State, up: State) -> list[Tensor | None]:
    """Return the field of Shared that each field of an Up is an update of, None if there is none, or if it is
    SERVER_ONLY."""
    known = {name: value for name, value in shared._asdict().items() if isinstance(value, Tensor)}
    return [known[name] if name in known and known[name].shape == sent.shape else None
            for name, sent in up._asdict().items()]


def attack_update(attack: Attack, shared: State, up: State, generator: np.random.Generator) -> State:
    """Return what an attacker sends in place of `up`. Integers, such as numbers of clusters, stay as they are."""
    return type(up)(*(_attack_field(attack, origin, sent, generator) if sent.is_floating_point() else sent
                      for origin, sent in zip(find_origins(shared, up), up, strict=True)))


def _attack_field(attack: Attack, origin: Tensor | None, sent: Tensor, generator: np.random.Generator) -> Tensor:
    if attack.kind == "sign_flip":
        return -attack.scale * sent if origin is None else origin - attack.scale * (sent - origin)
    return sent + attack.scale * torch.from_numpy(generator.standard_normal(tuple(sent.shape))).to(sent)


def clamp_variances(model: Model, up: State) -> None:
    """Let no running variance of an attacker's update be negative: a server would see at once that it is none, and no
    network could compute with a mean that it made negative."""
    for sent in up:
        net = find_trained_net(model, sent) if sent.ndim == 1 else None
        if net is not None and net.buffers:
            for name, values in zip(net.names, net.split(sent), strict=True):
                if name.rpartition(".")[2] == "running_var":
                    values.clamp_(min=0)


def clip_update(shared: State, up: State, longest: float) -> State:
    """Return an update whose norm over all its fields is at most `longest`. Integers, such as counts, stay as they are
    and are not part of the norm."""
    origins = find_origins(shared, up)
    changes = [sent - origin for origin, sent in zip(origins, up, strict=True) if sent.is_floating_point()]
    norm = math.sqrt(sum(float(change.flatten().double().square().sum()) for change in changes))
    # also if the norm is nan
    if not norm > longest:
        return up
    shortened = (change * (longest / norm) for change in changes)
    return type(up)(*(origin + next(shortened) if sent.is_floating_point() else sent
                      for origin, sent in zip(origins, up, strict=True)))


def fits_exact_sums(*states: State) -> bool:
    """Say whether all numbers of some states are finite and in the range of exact sums."""
    return all(exact.find_max_magnitude(v) < exact.RANGE for state in states for v in state if v.is_floating_point())


def refuse_updates(config: Config, method: Method, federation: Federation) -> None:
    """Raise BadInput for settings of attacks and defences that would mean nothing for a method."""
    server, attack = config.server, config.attack
    if attack is not None and len(federation.sizes) < 2:
        clients, new = config.data.clients, config.data.new_clients
        raise BadInput(f"attack.kind = {attack.kind}: of data.clients = {clients}{f' less {new} new ones' * bool(new)} "
                       "none is left to be honest; leave attack out, or raise data.clients")
    if server.aggregation != "mean" and not method.supports_robust_mean:
        raise BadInput(f"server.aggregation = {server.aggregation}: the server of {method.title} does not just take "
                       "means of what clients send; set it to mean, or take another method")
    tampers = attack is not None and attack.kind != "label_flip"
    if not tampers and server.clip_norm is None:
        return
    shared, mine = method.init(len(federation.sizes))
    up = rehearse_loop(method, shared, mine, make_blank_samples(federation.shape, federation.dtype))[1]
    if attack is not None and tampers and not up:
        raise BadInput(f"attack.kind = {attack.kind}: clients of {method.title} send nothing that it could change; set "
                       "it to label_flip, or take another method")
    if attack is not None and tampers and method.message_template() is not None:
        raise BadInput(f"attack.kind = {attack.kind}: in {method.title} clients receive what other clients keep, which "
                       "this attack does not change; set it to label_flip, or take another method")
    numbers = {name: origin for (name, sent), origin in zip(up._asdict().items(), find_origins(shared, up), strict=True)
               if sent.is_floating_point()}
    lone = [name for name, origin in numbers.items() if origin is None] if numbers else up._fields
    if server.clip_norm is not None and (lone or not up):
        raise BadInput(f"server.clip_norm = {server.clip_norm}: in {method.title} clients send "
                       f"{', '.join(lone) or 'nothing'}, which is not an update of one model that all were sent; leave "
                       "it out, or take another method")
