"""The kept inputs of every target, replayed; and that judge, mutations and distillation do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from fluxsched.errors import InvalidTransition, InvalidValue
from tests.fuzz import corpus
from tests.fuzz.catalogue import by_module, module_of, targets
from tests.fuzz.judge import Defect, judge, limited
from tests.fuzz.mutations import Mutator
from tests.fuzz.target import Shape, Target
from tests.fuzz.targets.services import KEPT

MUTATED_EACH = 3


@pytest.fixture(autouse=True, scope="module")
def worlds_end() -> Iterator[None]:
    """A simulated world that stays silences the log of all tests that follow."""
    yield
    KEPT.drop()


@pytest.mark.parametrize("module", by_module())
def test_the_kept_inputs_show_no_defect(module: str) -> None:
    """And a few that are made from them, the same ones each time."""
    for target in by_module()[module]:
        kept = corpus.read(target)
        assert kept, f"keep some inputs: python -m tests.fuzz {target.name} --keep"
        mutator, chance = Mutator(target, kept), Random(target.name)
        made = [mutator.mutate(data, 4096, chance) for data in chance.choices(kept, k=MUTATED_EACH)]
        with limited():
            found = {data: defect for data in (*kept, *made) if (defect := judge(target, data)) is not None}
        assert not found, f"{target.name}: {found}"


def test_what_is_kept_belongs_to_a_target_and_is_small() -> None:
    names = {target.name for target in targets()}
    assert {file.stem for file in corpus.KEPT.iterdir()} == names
    assert len(names) == len(targets())
    assert all(len(data) <= corpus.INPUT_BYTES_MAX for target in targets() for data in corpus.read(target))


def _judged(run: object) -> Defect | None:
    with limited():
        return judge(Target("x", run, lambda: (), errors=(KeyError,)), b"data")  # type: ignore[arg-type]


def _raises(fault: BaseException) -> object:
    def run(data: bytes) -> None:
        raise fault

    return run


def _hangs(data: bytes) -> None:
    while True:
        pass


def test_only_declared_errors_are_no_crash() -> None:
    assert _judged(len) is None
    assert _judged(_raises(InvalidValue("no"))) is None
    assert _judged(_raises(KeyError("declared"))) is None
    for fault in (ValueError("x"), AssertionError(), RecursionError(), MemoryError(), InvalidTransition("our own bug")):
        defect = _judged(_raises(fault))
        assert defect is not None
        assert (defect.kind, defect.place.split()[0]) == ("crash", type(fault).__name__)


def test_a_hang_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.judge.HANG_S", 0.05)
    defect = _judged(_hangs)
    assert defect is not None
    assert (defect.kind, "_hangs" in defect.place) == ("hang", True)


@pytest.mark.parametrize(
    ("shape", "seed"),
    [
        (Shape.TEXT, b"a[0-3],b"),
        (Shape.JSON, b'{"a": [1, "b", {"c": null}]}'),
        (Shape.MSGPACK, b"\x93\xc4\x01a\x01\xa1b"),
    ],
)
def test_the_same_chance_makes_the_same_inputs_and_another_others(shape: Shape, seed: bytes) -> None:
    mutator = Mutator(Target("x", len, lambda: (), shape, words=("word",)), [seed])
    made, again, others = ([mutator.mutate(seed, 100, Random(n + k)) for n in range(50)] for k in (0, 0, 50))
    assert made == again != others
    assert len(set(made)) > 30
    assert max(map(len, made)) <= 100


@pytest.mark.plain_only("compiled lines are not seen when they run")
def test_distillation_keeps_what_runs_other_code() -> None:
    target = next(target for target in targets() if target.name == "idset")
    kept = corpus.distilled(target, [b"1", b"2", b"3", b"1-3", b"2-4", b"[0]", b"x", b"y", b"zzzz"])
    assert {b"1", b"x"} <= set(kept)
    assert len(kept) < 7


def test_a_target_is_found_by_its_name() -> None:
    assert module_of("header") == "tests.fuzz.targets.wire"
    with pytest.raises(KeyError, match=r"no target 'x': there are idset, "):
        module_of("x")
