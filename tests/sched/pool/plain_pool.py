"""The reference of the pool: plain sets, and all targets sorted for each request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.placement import BEST_FIT, FIRST_FIT, LEAST_LOST, LIKE, Part


@dataclass
class Plain:
    """One target, as sets."""

    cores: set[int]
    gpus: set[int]
    up: bool
    names: set[str]
    amounts: dict[str, int]
    busy: list[Part] = field(default_factory=list)
    occupied: dict[str, int] = field(default_factory=dict)
    withheld: bool = False

    @property
    def has_ids(self) -> bool:
        return bool(self.cores or self.gpus)

    @property
    def free(self) -> tuple[list[int], list[int]]:
        cores = sorted(id for id in self.cores if not any(part.cores >> id & 1 for part in self.busy))
        gpus = sorted(id for id in self.gpus if not any(part.gpus >> id & 1 for part in self.busy))
        return cores, gpus

    def left(self, kind: str) -> int:
        held = sum(dict(part.amounts).get(kind, 0) for part in self.busy)
        return self.amounts.get(kind, 0) - self.occupied.get(kind, 0) - held

    def level(self, weights: dict[str, float]) -> int:
        """The free share in steps of 1/64."""
        parts = [(Fraction(weights.get(kind, 0)), max(self.left(kind), 0), n) for kind, n in self.amounts.items()]
        whole = sum(weight for weight, _, _ in parts)
        return int(64 * sum(weight * Fraction(left, n) for weight, left, n in parts) / whole) if whole else 64


class Reference:
    """What the pool should do, by looking at every target every time."""

    def __init__(self) -> None:
        self.targets: dict[int, Plain] = {}
        self.shared: dict[str, int] = {}
        self.shared_used: dict[str, int] = {}
        self.weights: dict[str, float] = {"vcore": 1.0, "memory": 1.0}

    def slots_at(self, rank: int, request: Request, *, ever: bool = False) -> int:
        """How many slots fit there."""
        target = self.targets[rank]
        if not self.matches(rank, request.constraint) or not (ever or target.up):
            return 0
        if request.is_of_amounts:
            there = target.amounts.get if ever else lambda kind, _: target.left(kind)
            return int(not target.has_ids and all(there(kind, 0) >= amount for kind, amount in request.amounts))
        cores, gpus = (target.cores, target.gpus) if ever else target.free
        left: Callable[[str], int] = (lambda kind: target.amounts.get(kind, 0)) if ever else target.left
        if request.exclusive and not ever and target.busy:
            return 0
        slots = len(cores) // request.cores
        if request.gpus:
            slots = min(slots, len(gpus) // request.gpus)
        for kind, amount in request.node_amounts:
            if left(kind) < amount:
                return 0
        for kind, amount in request.amounts:
            slots = min(slots, (left(kind) - dict(request.node_amounts).get(kind, 0)) // amount)
        return max(slots, 0)

    def matches(self, rank: int, constraint: Constraint) -> bool:
        values = constraint.values
        match constraint.operator:
            case "properties":
                names = self.targets[rank].names
                return all((v[1:] not in names) if v[0] == "^" else v in names for v in map(str, values))
            case "ranks":
                return any(isinstance(value, Idset) and rank in value for value in values)
            case "not":
                return not all(self.matches(rank, value) for value in values if isinstance(value, Constraint))
            case "or":
                return any(self.matches(rank, value) for value in values if isinstance(value, Constraint))
        return all(self.matches(rank, value) for value in values if isinstance(value, Constraint))

    def lost(self, rank: int, request: Request, slots: int) -> int:
        """What is free of a target beyond so many slots, by weight."""
        target = self.targets[rank]
        cores, gpus = map(len, target.free)
        asked = dict(request.node_amounts).get("memory", 0) + slots * dict(request.amounts).get("memory", 0)
        left = cores - slots * request.cores + 10 * (gpus - slots * request.gpus)
        return (left << 32) + target.left("memory") - asked

    def ordered(self, slots: dict[int, int], request: Request, placement: str) -> list[int]:
        """Ranks, of those that get so many slots."""
        placement = LIKE.get(placement, placement)

        def key(rank: int) -> tuple[int, int, int]:
            cores, gpus = map(len, self.targets[rank].free)
            if placement == FIRST_FIT:
                return (0, 0, rank)
            if not self.targets[rank].has_ids:
                level = self.targets[rank].level(self.weights)
                return (level if placement in (BEST_FIT, LEAST_LOST) else -level, 0, rank)
            if placement == LEAST_LOST:
                return (self.lost(rank, request, slots[rank]), 0, rank)
            return (gpus, cores, rank) if placement == BEST_FIT else (-cores, gpus, rank)

        return sorted(slots, key=key)

    def part(self, rank: int, request: Request, slots: int) -> Part:
        target = self.targets[rank]
        cores, gpus = target.free
        amounts = dict(target.amounts)
        if not request.exclusive:
            cores, gpus = cores[: slots * request.cores], gpus[: slots * request.gpus]
            amounts = dict(request.node_amounts)
            for kind, amount in request.amounts:
                amounts[kind] = amounts.get(kind, 0) + slots * amount
        return Part(rank, sum(1 << id for id in cores), sum(1 << id for id in gpus), tuple(sorted(amounts.items())))

    def place(self, request: Request, placement: str, among: set[int] | None = None) -> tuple[Part, ...]:
        if any(self.shared.get(kind, 0) - self.shared_used.get(kind, 0) < n for kind, n in request.shared):
            return ()
        ranks = [rank for rank, target in self.targets.items() if not target.withheld]
        able = {rank: self.slots_at(rank, request) for rank in ranks if among is None or rank in among}
        if request.nodes is None:
            wanted = max((n for n in range(1, sum(able.values()) + 1) if n in request.slots), default=0)
            parts = []
            slots_there = {rank: min(wanted, n) for rank, n in able.items() if n}
            for rank in self.ordered(slots_there, request, placement):
                if wanted:
                    parts.append(self.part(rank, request, min(wanted, able[rank])))
                    wanted -= min(wanted, able[rank])
            return tuple(parts)
        for slots in range(20, 0, -1):
            ranks = [rank for rank in able if able[rank] >= slots] if slots in request.slots else []
            wanted = max((n for n in range(1, len(ranks) + 1) if n in request.nodes), default=0)
            if wanted:
                ordered = self.ordered(dict.fromkeys(ranks, slots), request, placement)
                return tuple(self.part(rank, request, slots) for rank in ordered[:wanted])
        return ()

    def feasible(self, request: Request) -> bool:
        if any(self.shared.get(kind, 0) < n for kind, n in request.shared):
            return False
        ever = [self.slots_at(rank, request, ever=True) for rank in self.targets]
        if request.nodes is None:
            return sum(ever) >= request.slots.min
        return sum(slots >= request.slots.min for slots in ever) >= request.nodes.min
