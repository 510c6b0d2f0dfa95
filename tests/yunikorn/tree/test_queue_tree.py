"""The tree of queues: what it allows, what it says, and how it changes."""

import pytest

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.yunikorn.tree.queues import Limit, QueueSettings, QueueTree
from tests.sched.site import limit

COMPLETING, QUEUES_MAX, QUEUE_DEPTH_MAX, RUNNING = limit("COMPLETING", "QUEUES_MAX", "QUEUE_DEPTH_MAX", "RUNNING")


def parent(name, *children):
    return QueueSettings(name, is_parent=True, children=children)


def test_there_are_only_so_many_queues(lower):
    assert QUEUES_MAX > 1000
    lower(QUEUES_MAX=3)
    tree = QueueTree(parent("root", QueueSettings("a")))
    tree.create("root.b", QueueSettings("b"))
    with pytest.raises(LimitExceeded, match="there are 3"):
        tree.create("root.c", QueueSettings("c"))


def test_a_tree_is_only_so_deep():
    tree = QueueTree(parent("root"))
    path = "root"
    for _ in range(QUEUE_DEPTH_MAX):
        path = tree.create(f"{path}.a", parent("a")).path
    with pytest.raises(LimitExceeded, match=f"{QUEUE_DEPTH_MAX + 1} levels"):
        tree.create(f"{path}.a", QueueSettings("a"))


def test_a_limit_is_that_of_the_first_that_names_the_user_or_a_group():
    limits = (
        Limit(users=frozenset({"ann"}), maximum=(("vcore", 10),)),
        Limit(groups=frozenset({"staff"}), maximum=(("vcore", 5),), max_applications=1),
        Limit(users=frozenset({"*"}), maximum=(("vcore", 3),)),
    )
    tree = QueueTree(QueueSettings("root", is_parent=True, limits=limits, children=(QueueSettings("a"),)))
    leaf = tree.queue("root.a")
    assert leaf is not None
    ann = tree.add_application("1", leaf, "ann", ("staff",), 0.0)
    bob = tree.add_application("2", leaf, "bob", ("staff",), 0.0)
    cid = tree.add_application("3", leaf, "cid", ("staff",), 0.0)
    dan = tree.add_application("4", leaf, "dan", (), 0.0)
    eve = tree.add_application("5", leaf, "eve", (), 0.0)
    tree.book(ann, 1, (("vcore", 10),))
    tree.book(bob, 2, (("vcore", 4),))
    tree.book(dan, 3, (("vcore", 3),))
    tree.check()
    assert not tree.admits(ann, (("vcore", 1),))
    assert tree.admits(bob, (("vcore", 1),))
    assert not tree.admits(cid, (("vcore", 1),)), "a group may have one application"
    assert "1 of at most 1 applications have begun" in (tree.held_back(cid, (("vcore", 1),)) or "")
    assert not tree.admits(dan, (("vcore", 1),))
    assert tree.admits(eve, (("vcore", 3),)), "anyone is each user"
    assert tree.held_back(bob, (("vcore", 2),)) == (
        "limit of group staff in queue root: 4 vcore of at most 5 vcore used, 2 vcore more requested"
    )
    tree.free(bob, 2, (), all_of_it=True)
    assert tree.admits(cid, (("vcore", 5),))
    tree.set_stage(bob, RUNNING)
    assert not tree.admits(cid, (("vcore", 5),)), "it runs, though it holds nothing now"
    tree.set_stage(bob, COMPLETING)
    assert tree.admits(cid, (("vcore", 5),))
    tree.check()


def test_a_removed_queue_drains_and_goes_with_its_last_application():
    tree = QueueTree(parent("root", parent("a", QueueSettings("b"), QueueSettings("c")), QueueSettings("d")))
    leaf = tree.queue("root.a.b")
    assert leaf is not None
    application = tree.add_application("1", leaf, "ann", (), 0.0)
    changes = tree.reconfigure(parent("root", QueueSettings("d"), QueueSettings("e")))
    assert changes == (("root.e",), ("root.a", "root.a.b"), ("root.a.c",))
    with pytest.raises(InvalidValue, match="is draining"):
        tree.add_application("2", leaf, "ann", (), 0.0)
    assert tree.remove_application(application) == ["root.a.b", "root.a"]
    assert tree.queue("root.a") is None
    tree.check()


def test_a_leaf_in_use_does_not_become_a_parent():
    tree = QueueTree(parent("root", QueueSettings("a", max_applications=3)))
    leaf = tree.queue("root.a")
    assert leaf is not None
    tree.add_application("1", leaf, "ann", (), 0.0)
    with pytest.raises(InvalidValue, match=r"'root\.a' cannot become a parent"):
        tree.reconfigure(parent("root", parent("a"), QueueSettings("b")))
    assert tree.queue("root.b") is None
    assert leaf.settings.max_applications == 3


def test_a_created_queue_goes_with_its_last_application():
    tree = QueueTree(parent("root"))
    queue = tree.create("root.a", QueueSettings("a"))
    application = tree.add_application("1", queue, "ann", (), 0.0)
    tree.book(application, 7, (("vcore", 1),))
    with pytest.raises(InvalidValue, match="1 allocations"):
        tree.remove_application(application)
    tree.free(application, 7, (), all_of_it=True)
    assert tree.reconfigure(parent("root")).draining == ()
    assert tree.remove_application(application) == ["root.a"]
