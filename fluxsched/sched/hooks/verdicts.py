"""Verdicts of plugins on shapes and classes of equal targets, kept as the remaining choice of each shape.

Law: each plugin is asked once a shape, class and generation, that of the pool and its own, however many jobs there are;
and again when the time has come that it named. What it says of a shape is a mask, so policies and plans follow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final

from fluxsched.core.idset import Idset
from fluxsched.sched.hooks.api import SCORE_MAX, GroupSeen, Kind, Later, Never, Skip
from fluxsched.sched.hooks.chain import (
    NO_GENERATION,
    RETRY_S,
    Chain,
    Filtering,
    PluginFault,
    ask,
    check_later,
    generation_of,
    is_pass,
    why_of,
    wrong,
)
from fluxsched.sched.pool.allowed_targets import Narrowed, restricted
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.pool.pool import Pool

VERDICTS_MAX = 4096
"""Shapes whose verdicts are kept beyond those of waiting jobs."""

ALL: Final = -1
"""The mask of all targets."""

SCORE_UNITS: Final = 1000
"""Scores that differ by less are equal."""


class _Said:
    """Verdict of one plugin on one shape: masks of targets, reasons, scores by class; valid until `until_s`."""

    __slots__ = ("ever", "generation", "later", "never", "now", "scores", "skips", "until_s")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.now = self.ever = ALL
        self.later = self.never = ""
        self.until_s = inf
        self.skips = False
        self.scores: list[float] | None = None


class _Verdict:
    """Verdict on one shape: what each plugin answered, as of a generation of the pool and of the chain."""

    __slots__ = ("chain_generation", "delegated", "generation", "said", "until_s")

    def __init__(self, plugins: int) -> None:
        self.generation = self.chain_generation = -1
        self.until_s = inf
        self.said: list[_Said | None] = [None] * plugins
        self.delegated = False


class Verdicts:
    """Verdicts on shapes of one group; `faults` receives the texts of faults.

    `until_s` is when some verdict is to be renewed.
    """

    __slots__ = ("_chains", "_faults", "_kinds", "_kinds_of", "_known", "_name", "_pool", "_seen", "until_s")

    def __init__(self, name: str, pool: Pool, chains: Mapping[str, Chain], faults: list[str]) -> None:
        self._name = name
        self._pool = pool
        self._chains = chains
        self._faults = faults
        self._known: dict[int, _Verdict] = {}
        self._kinds: list[Kind] = []
        self._kinds_of = -1
        self._seen: GroupSeen | None = None
        self.until_s = inf

    def renew(self, shape: Shape, now_s: float) -> bool:
        """Narrow the shape's choice in the pool by plugins' verdicts; return whether it may have changed."""
        chain = self._chains[shape.scope or ""]
        if not chain.filtering:
            return False
        verdict, generation, own = self._known.get(shape.number), self._pool.generation, chain.generation
        if verdict is None:
            verdict = self._known[shape.number] = _Verdict(len(chain.filtering))
        elif verdict.generation == generation and verdict.chain_generation == own and now_s < verdict.until_s:
            return False
        fresh = verdict.generation != generation
        verdict.generation, verdict.chain_generation, verdict.until_s = generation, own, inf
        changed = fresh
        for at, each in enumerate(chain.filtering):
            said = verdict.said[at]
            if fresh or said is None or said.generation != generation_of(each.plugin) or said.until_s <= now_s:
                said = verdict.said[at] = self._ask(each, shape, now_s)
                changed = True
            verdict.until_s = min(verdict.until_s, said.until_s)
        self.until_s = min(self.until_s, verdict.until_s)
        if changed:
            verdict.delegated = chain.may_delegate and all(said is not None and said.skips for said in verdict.said)
            self._pool.narrow(shape, self._narrowed(shape, verdict))
        return changed

    def delegates(self, shape: Shape) -> bool:
        """Return whether every plugin asked after the queue skips this shape: its policy decides as without them."""
        verdict = self._known.get(shape.number)
        return verdict is not None and verdict.delegated

    def keep(self, numbers: Iterable[int]) -> None:
        """Forgets shapes of which no job waits, if there are many; `until_s` is worked out anew."""
        waiting = set(numbers)
        if len(self._known) > VERDICTS_MAX:
            for number in [number for number in self._known if number not in waiting]:
                del self._known[number]
                self._pool.narrowed.pop(number, None)
                self._pool.shut.discard(number)
                self._pool.prepared.pop(number, None)
        self.until_s = min([self._known[number].until_s for number in waiting & self._known.keys()], default=inf)

    # ---- within

    def _ask(self, each: Filtering, shape: Shape, now_s: float) -> _Said:
        said = _Said(generation_of(each.plugin))
        if said.generation == NO_GENERATION:
            self._failed(said, PluginFault(f"plugin {each.name!r}: generation should be a number that grows"), now_s)
            return said
        kinds = self._classes(shape)
        if each.pre_filter is not None:
            self._take(each, said, "pre_filter", ask(each.name, each.pre_filter, shape, self._group()), ALL, now_s)
        if each.filter is not None and not said.skips and said.now:
            chosen = self._chosen(shape)
            for kind in kinds:
                if kind.ranks.mask & chosen:
                    answer = ask(each.name, each.filter, shape, kind)
                    self._take(each, said, "filter", answer, kind.ranks.mask, now_s)
        if each.score is not None and not said.skips and said.now:
            self._score(each, said, shape, kinds, now_s)
        return said

    def _take(self, each: Filtering, said: _Said, point: str, answer: Any, mask: int, now_s: float) -> None:
        """Take over one answer about the targets of a mask."""
        early = point == "pre_filter"
        if is_pass(answer):
            return
        if early and isinstance(answer, Skip):
            said.skips = True
        elif early and isinstance(answer, Idset):
            said.now &= answer.mask
            said.later = f"plugin {each.name!r} leaves it ranks {answer} only"
        elif isinstance(answer, Later):
            later = check_later(each.name, point, answer)
            if not isinstance(later, Later):
                self._failed(said, wrong(each.name, point, later, "a Later with a finite time"), now_s)
                return
            said.now &= ~mask
            said.later = why_of(each.name, later)
            if later.at_s is not None and later.at_s > now_s:  # else it would be asked again and again
                said.until_s = min(said.until_s, later.at_s)
        elif isinstance(answer, Never):
            said.now &= ~mask
            said.ever &= ~mask
            said.never = why_of(each.name, answer)
        else:
            allowed = "PASS, SKIP, an Idset, Later or Never" if early else "PASS, Later or Never"
            self._failed(said, wrong(each.name, point, answer, allowed), now_s)

    def _failed(self, said: _Said, fault: PluginFault, now_s: float) -> None:
        """Record that the shape waits, and its plugin is asked again after a while."""
        said.now, said.later, said.until_s = 0, fault.why, now_s + RETRY_S
        self._faults.append(fault.why)

    def _score(self, each: Filtering, said: _Said, shape: Shape, kinds: list[Kind], now_s: float) -> None:
        if each.pre_score is not None:
            answer = ask(each.name, each.pre_score, shape)
            if isinstance(answer, Skip):
                return None
            if not is_pass(answer):
                return self._failed(said, wrong(each.name, "pre_score", answer, "PASS or SKIP"), now_s)
        scores = []
        for kind in kinds:
            answer = ask(each.name, each.score, shape, kind) if each.score is not None else 0
            if not isinstance(answer, (int, float)) or not 0 <= answer <= SCORE_MAX:
                allowed = f"a number from 0 to {SCORE_MAX}"
                return self._failed(said, wrong(each.name, "score", answer, allowed), now_s)
            scores.append(each.weight * answer)
        said.scores = scores
        return None

    def _narrowed(self, shape: Shape, verdict: _Verdict) -> Narrowed | None:
        now = ever = ALL
        later = never = ""
        totals: list[float] | None = None
        for said in verdict.said:
            if said is None:
                continue
            now &= said.now
            ever &= said.ever
            later, never = later or said.later, never or said.never
            if said.scores is not None:
                totals = said.scores if totals is None else [a + b for a, b in zip(totals, said.scores, strict=True)]
        scores = self._scores(shape, totals) if totals is not None else ()
        if now == ALL and ever == ALL and not scores:
            return None
        choice, ranks = self._pool.choice(shape.request.constraint), self._pool.ranks.mask
        now, ever = now & ranks, ever & ranks
        left, able = restricted(choice, now, scores), restricted(choice, ever)
        return Narrowed(left, able, now, later, never, ever, scores)

    def _scores(self, shape: Shape, totals: list[float]) -> tuple[tuple[int, int], ...]:
        """Masks of targets with equal scores; none if all are equal."""
        masks: dict[int, int] = {}
        for kind, total in zip(self._classes(shape), totals, strict=True):
            score = round(total * SCORE_UNITS)
            masks[score] = masks.get(score, 0) | kind.ranks.mask
        return tuple((mask, score) for score, mask in masks.items()) if len(masks) > 1 else ()

    def _chosen(self, shape: Shape) -> int:
        """Return the targets that the constraint allows."""
        if shape.request.is_of_amounts:
            return ALL
        found = 0
        for targets, _, only, _ in self._pool.choice(shape.request.constraint):
            found |= targets.members.mask() if only is None else only.mask()
        return found

    def _group(self) -> GroupSeen:
        pool = self._pool
        if self._seen is None or self._seen.generation != pool.generation:
            source = pool.source
            self._seen = GroupSeen(self._name, pool.ranks, pool.generation, source.ranks_of, source.properties)
        return self._seen

    def _classes(self, shape: Shape) -> list[Kind]:
        """Return the classes of equal targets, in the order of their lowest ranks; worked out once a generation."""
        if shape.request.is_of_amounts:
            found = self._pool.amount_targets.kinds()
            return [Kind(ranks, 0, 0, amounts, frozenset(names)) for amounts, names, ranks in found]
        if self._kinds_of != self._pool.generation:
            self._kinds = kinds_of(self._pool)
            self._kinds_of = self._pool.generation
        return self._kinds


def kinds_of(pool: Pool) -> list[Kind]:
    """Return targets by their resources and properties; linear in targets and their properties."""
    names: dict[int, list[str]] = {}
    for name, having in sorted(pool.source.properties.items()):
        for rank in having & pool.ranks:
            names.setdefault(rank, []).append(name)
    found: dict[tuple[int, int, Any, tuple[str, ...]], int] = {}
    for entry in pool.resources.entries:
        children = entry.children
        has = children.cores.mask.bit_count(), children.gpus.mask.bit_count(), children.amounts
        plain = entry.ranks.mask
        for rank in entry.ranks:
            if rank in names:
                key = (*has, tuple(names[rank]))
                found[key] = found.get(key, 0) | 1 << rank
                plain &= ~(1 << rank)
        if plain:
            key = (*has, ())
            found[key] = found.get(key, 0) | plain
    ordered = sorted(found.items(), key=lambda one: one[1] & -one[1])
    return [Kind(Idset(mask), *key[:3], frozenset(key[3])) for key, mask in ordered]
