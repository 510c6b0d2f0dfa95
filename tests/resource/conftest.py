"""A resource module of eight one-host targets, driven by words: sets as idset text, what acquirers hear as lines."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.resource.effects import AcquisitionEnded, Journal, RaiseJobs, Save, Saved, ToAcquirer
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.module import ResourceModule


def ids(text):
    return text if isinstance(text, Idset) else Idset.parse(text)


def make_r(ranks="0-7", hosts="node[0-7]", cores="0-3", **execution):
    rlite = [{"rank": ranks, "children": {"core": cores}}] if ranks else []
    return ResourceSet.parse({"version": 1, "execution": {"R_lite": rlite, "nodelist": [hosts], **execution}})


class Harness:
    """One module, its store, and the words for what it says; every call ends in `check()`."""

    def __init__(self, r=None, groups=None, saved=(), dynamic=False, online=None, running=(), **options):
        r = make_r() if r is None else r
        configured = {name: ids(text) for name, text in (groups or {}).items()}
        self.rows = {(row.table, row.key): row.value for row in saved}
        self.now_s = 100.0
        self.effects = []
        online = r.ranks if online is None else ids(online)
        method = "dynamic-discovery" if dynamic else "configuration"
        inventory = Inventory(r, method, dynamic)
        self.module = ResourceModule(inventory, configured, saved, now_s=self.now_s, online=online, **options)
        for jobid, text in running:
            self.module.hold(jobid, ids(text))
        self._note(self.module.start(self.now_s))
        self.now_s += 1

    def saved(self):
        return [Saved(table, key, value) for (table, key), value in self.rows.items()]

    def _note(self, effects):
        self.effects = effects
        for effect in effects:
            if isinstance(effect, Save):
                key = effect.table, effect.key
                if effect.value is None:
                    assert key in self.rows, f"{key} is deleted but was never stored"
                    del self.rows[key]
                else:
                    self.rows[key] = effect.value
        self.module.check()
        return self.lines()

    def _call(self, name, *args, **kwargs):
        try:
            return self._note(getattr(self.module, name)(*args, **kwargs))
        except BaseException:
            assert self.module.journal.take_effects() == [], "a refused request left effects"
            self.module.check()
            raise
        finally:
            self.now_s += 1

    def resources(self):
        """R of the last grow."""
        changes = [effect.change for effect in self.effects if isinstance(effect, ToAcquirer)]
        return [change for change in changes if change.grow is not None][-1].grow

    # what is said, one line a thing, journal and rows aside
    def lines(self):
        return [line for effect in self.effects for line in self._lines(effect)]

    def _lines(self, effect):
        match effect:
            case ToAcquirer(who, change, _):
                return [f"{who}: {words}" for words in self._changes(change)]
            case RaiseJobs(targets, jobids, _):
                return [f"raise {jobids} on {targets}"]
            case AcquisitionEnded(who, errnum, _, group):
                return [f"{who}: ended {group} {errnum}"]
        return []

    def _changes(self, change):
        joined = change.joined
        if change.grow is not None:
            yield f"grow {joined} up {change.online & joined} down {change.offline & joined}"
        if change.shrink:
            yield f"shrink {change.shrink}"
        online, offline = change.online - joined, change.offline - joined
        if online or offline:
            yield f"up {online} down {offline}"
        if change.spares is not None:
            yield f"spares {change.spares}"
        if replace(change, spares=None).is_update:
            tables = change.property_add, change.property_remove
            added, removed = ({name: str(part) for name, part in table.items()} for table in tables)
            yield f"update {change.expiration_s} {added} {removed}"

    def events(self, *names):
        events = [effect.event for effect in self.effects if isinstance(effect, Journal)]
        return [(event["name"], event["context"]) for event in events if not names or event["name"] in names]

    # requests in words
    def acquire(self, who, group=None):
        return self._call("acquire", who, group, group is not None)

    def release(self, who, group, targets):
        return self._call("release", who, group, ids(targets), self.now_s)

    def disconnect(self, who):
        return self._call("disconnect", who, self.now_s)

    def drain(self, targets, reason="bad", mode=None, user="ann", until_s=inf):
        return self._call("drain", ids(targets), reason, mode, user, self.now_s, until_s)

    def undrain(self, targets, reason=None, mode=None, user="ann", only=None):
        return self._call("undrain", ids(targets), reason, mode, user, self.now_s, only)

    def assign(self, targets, group, graceful=False):
        return self._call("assign", ids(targets), group, self.now_s, graceful, "ann")

    def include(self, targets, graceful=False):
        return self._call("include", ids(targets), self.now_s, graceful)

    def hold(self, jobid, targets):
        return self._call("hold", jobid, ids(targets))

    def unhold(self, jobid, targets):
        return self._call("unhold", jobid, ids(targets), self.now_s)

    def set(self, state, targets):
        return self._call(f"set_{state}", ids(targets), self.now_s)

    def add(self, resources):
        return self._call("add_targets", resources, self.now_s)

    def properties(self, verb, **properties):
        table = {name: ids(text) for name, text in properties.items()}
        return self._call(f"property_{verb}", table, self.now_s)

    def expire(self, expiration_s):
        return self._call("set_expiration", expiration_s, self.now_s)

    def reload(self, resources, groups=None, force=False):
        groups = {name: ids(text) for name, text in (groups or {}).items()}
        return self._call("reload", Inventory(resources, "reload"), groups, self.now_s, force)

    # reads in words
    def members(self, group):
        return str(self.module.targets_of_group(group))

    def drained(self):
        return {str(targets): info for targets, info in self.module.report.status()["drain"].items()}

    def move(self, targets):
        return tuple(str(part) for part in self.module.report.move_state(ids(targets)))

    def row(self, table, key):
        return self.rows.get((table, key))


@pytest.fixture
def start():
    """Makes a harness; see `Harness`."""
    return Harness


@pytest.fixture
def r():
    """Makes an R; see `make_r`."""
    return make_r


@pytest.fixture
def h(start):
    """Eight targets online, 6-7 in group b, node5 excluded."""
    return start(groups={"b": "6-7", "exclude": "5"})
