"""UUIDs of allocations: their form, and that none comes twice."""

from __future__ import annotations

import uuid

from fluxsched.system.clock import RandomSource, seeded
from fluxsched.yunikorn.service import UuidMaker


def test_they_have_the_form_and_none_comes_twice() -> None:
    makers = [UuidMaker(RandomSource()) for _ in range(10)]
    made = [make() for make in makers for _ in range(1000)]
    assert len(set(made)) == len(made)
    for text in made[::97]:
        found = uuid.UUID(text)
        assert (str(found), found.version, found.variant) == (text, 4, uuid.RFC_4122)


def test_the_same_chance_makes_the_same() -> None:
    assert UuidMaker(seeded(1))() == UuidMaker(seeded(1))() != UuidMaker(seeded(2))()
