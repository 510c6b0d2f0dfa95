"""What becomes of a scheduler module that fails: one that ends is started again, one that hangs is ended.

    served its groups, then ended -> started again, `restart` times within RESTARTS_WITHIN_S, a little later each time
    -> `fallback` in its place, with as many starts -> left as it is
    served its groups, then hung -> `fallback` in its place; without one started again as above

Law: only what has served its groups before is started again; one that never came up is its loader's to know. Jobs are
never touched: running jobs continue, and the next scheduler of the group learns of them by hello. A group waits for a
policy that hangs once, `hung-after` in all: one that hung would hang again, each time for as long.

Every LOOK_S each module is asked whether it is there (`NAME.ping` without payload), and answers between two slices of a
pass. Silence counts only from there; a pass may take any time as long as the policy yields.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable

from fluxsched.errors import FluxschedError
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.modules.process import Module
from fluxsched.runtime.system.log import logger

log = logger("module")

LOOK_S = 1.0
"""How often modules are asked whether they are there (seconds); more often where `hung-after` is short."""

LOOKS_MIN = 4
"""So many looks fit into the shortest `hung-after`."""

ANSWER_S = 3.0
"""How long a question to a module may take before the requester gets an error (seconds)."""

SHOWN = 1 / 3
"""The part of `hung-after` from which on a silent module is listed as hung: 10 s of 30."""

RESTARTS_WITHIN_S = 600.0
"""Failures that are further back count no more (seconds)."""

BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
"""How long after a failure a module is started again: twice as long each time, up to the most (seconds)."""


class Supervision:
    """Watches modules, and starts those again that fail; `start` starts a module's process and may raise Refused."""

    def __init__(
        self, router: Router, turns: Turns, modules: Callable[[], Iterable[Module]], start: Callable[[Module], None]
    ) -> None:
        self._router = router
        self._turns = turns
        self._modules = modules
        self._start = start
        self._interval_s = LOOK_S
        self._looked_s: float | None = None
        """When modules were looked at last (monotonic); None while there is nothing to watch."""

    # -- those that hang ----------------------------------------------------------------------------------------

    def watch(self, module: Module) -> None:
        """Keep an eye on a module from now on."""
        self._interval_s = min(self._interval_s, module.recovery.hung_after_s / LOOKS_MIN)
        if self._looked_s is None:
            self._looked_s = self._turns.clock.monotonic_s()
            self._turns.after(self._interval_s, self._look)

    def _look(self) -> None:
        now_s = self._turns.clock.monotonic_s()
        assert self._looked_s is not None
        # If we were held up ourselves, answers may wait unread: that is not the modules' silence.
        passed_s = min(now_s - self._looked_s, 2 * self._interval_s)
        running = [module for module in self._modules() if module.is_running]
        for module in running:
            self._ask(module, passed_s)
        self._looked_s = now_s if running else None
        if running:
            self._turns.after(self._interval_s, self._look)

    def _ask(self, module: Module, passed_s: float) -> None:
        if module.is_asked or module.peer is None:
            module.silent_s += passed_s
        if module.silent_s >= module.recovery.hung_after_s:
            self._end(module)
        elif module.silent_s >= ANSWER_S and module.peer is not None:
            text = f"module {module.name!r} has not answered for {module.silent_s:.0f} s: its policy is slow, or hangs"
            self._router.calls.give_up(module.peer, errno.ETIMEDOUT, text)
        if module.peer is not None and not module.is_asked:
            module.is_asked = True
            self._router.call(module.peer, f"{module.name}.ping", None, lambda answer: self._heard(module))

    def _heard(self, module: Module) -> None:
        module.is_asked, module.silent_s = False, 0.0

    def _end(self, module: Module) -> None:
        assert module.process is not None
        limit = f"{module.recovery.hung_after_s:g} s"
        module.verdict = f"hung for {limit}" if module.peer is not None else f"was still importing after {limit}"
        module.process.kill()

    # -- those that end -----------------------------------------------------------------------------------------

    def failed(self, module: Module) -> None:
        """A module that has served its groups is down: see to what comes next, and say so in its `error`."""
        now_s, recovery = self._turns.clock.monotonic_s(), module.recovery
        module.failures = [at_s for at_s in module.failures if now_s - at_s < RESTARTS_WITHIN_S] + [now_s]
        count, why = len(module.failures), module.error
        can_fall_back = recovery.fallback is not None and module.specs != recovery.fallback
        has_hung = module.verdict is not None
        if count <= recovery.restart and not (has_hung and can_fall_back):
            delay_s = min(BACKOFF_S * 2 ** (count - 1), BACKOFF_MAX_S)
            module.error = f"{why}; started again ({count} of {recovery.restart})"
            text = "module %s ended: %s; it is started again in %g s, running jobs continue"
            log.error(text, module.name, why, delay_s)
        elif can_fall_back:
            assert recovery.fallback is not None
            delay_s = BACKOFF_S
            failures = f"failed {count} times" if count > 1 else "failed"
            module.error = f"{recovery.fallback} in place of {module.specs}, which {failures}: {why}"
            module.specs, module.failures = recovery.fallback, []
            log.error("module %s: %s", module.name, module.error)
        else:
            advice = f"running jobs continue, `fluxsched module reload {module.name}` starts it again"
            log.error("module %s ended: %s; %s", module.name, why, advice)
            return
        module.again = self._turns.after(delay_s, lambda: self.start(module))

    def start(self, module: Module) -> None:
        """Start a module that has served before; that it cannot be started is one more failure."""
        module.again = None
        try:
            self._start(module)
        except FluxschedError as exc:
            module.error = str(exc)
            self.failed(module)

    def forget(self, module: Module) -> None:
        """The module is removed: it is not started again."""
        if module.again is not None:
            module.again.cancel()
            module.again = None


def troubles(module: Module) -> str | None:
    """What a list of modules says of it beside its status."""
    if module.is_running and module.silent_s >= SHOWN * module.recovery.hung_after_s:
        return f"hung {module.silent_s:.0f} s"
    return module.error
