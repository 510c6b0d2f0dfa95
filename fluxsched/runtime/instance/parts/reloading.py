"""A configuration read again while the instance runs: `config.reload`, and with it whatever `resource.reload` does.

Law: all or nothing. Everything is read and judged first: the file with its targets; then what jobs, modules and held
targets have against it, and policies that queues did not have before, which are imported in a process of their own.
If anything is wrong, all of that is answered and nothing has changed. Jobs that were accepted stay accepted.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.core.topology import Topology
from fluxsched.errors import FluxschedError, Refused
from fluxsched.protocol.messages.common import ConfigChange, ConfigReloadResponse
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.runtime.access.key_files import AuthorizedKey
from fluxsched.runtime.access.keyring import ReadKeys
from fluxsched.runtime.access.rules import AccessRules
from fluxsched.runtime.config.changes import KeyChange, changes, in_force
from fluxsched.runtime.config.reader import Config, banks_of, in_full, queue_configs
from fluxsched.runtime.inventory.sources import Sources
from fluxsched.runtime.loop.writer import ImmediateWriter, Writer
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.modules.service import ModuleService
from fluxsched.runtime.services.resource import ResourceService
from fluxsched.runtime.system.log import logger

log = logger("config")

Read = Callable[[ReloadRequest], "tuple[Config, Sources]"]
"""Reads the configuration and the resources that a request wants. Raises InvalidValue with all faults."""


AUTHORIZED = "access.authorized-keys"
"""Under this key a change of a key is told."""

TOPOLOGY = "topology"
"""Under this key a change of the file with the switches is told."""

TryImports = Callable[[], None]
"""Imports the policies that the file names. Raises InvalidValue with all faults; takes a second and may wait."""


class Reloading:
    """Serves `config.get` and `config.reload`."""

    def __init__(
        self,
        config: Config,
        read: Read,
        router: Router,
        effects: JobEffects,
        modules: ModuleService,
        resource: ResourceService,
        read_keys: ReadKeys | None,
        try_imports: TryImports | None = None,
        background: Writer | None = None,
    ) -> None:
        self._name = config.name
        self._try_imports = try_imports
        self._background = background or ImmediateWriter()
        self._tried: Mapping[str, Any] | None = None
        """The configuration whose new policies were tried, while it is taken up."""
        self._import_faults: list[str] = []
        resource.prepare_reload = self._prepare
        self._router = router
        self._read_keys = read_keys
        self._topology = config.network.topology
        self._raw = config.raw
        """What is in force."""
        self._read = read
        self._effects = effects
        self._modules = modules
        self._resource = resource
        router.serve(
            {"config.get": lambda request: request.respond(in_full(self._raw)), "config.reload": self._request}
        )

    def _request(self, request: RpcRequest) -> None:
        if self._name:
            self._resource.reload(request, ReloadRequest())
        elif self._read_keys is not None:  # all that there is to read again
            rules = self._router.permissions.access.rules
            request.respond(ConfigReloadResponse(self._admit(rules, self._read_keys(rules)), [], []))
        else:
            raise Refused("this instance was started without --config: there is no file to read again", errno.ENOENT)

    def _admit(self, rules: AccessRules, keys: Mapping[bytes, AuthorizedKey] | None) -> list[ConfigChange]:
        """Apply rules and keys to those who come, and to those who are here: what has changed of the keys."""
        access = self._router.permissions.access
        before = access.keys
        access.change(rules, keys)
        cut = self._router.check_peers()
        if keys is not None or cut:
            log.info("%d keys are authorized; %d connections were ended", len(access.keys), cut)
        return _changed_keys(before, access.keys)

    def read(self, wanted: ReloadRequest) -> tuple[Sources, Callable[[], ConfigReloadResponse]]:
        """What a reload finds, and how the configuration is taken up once its resources were.

        Raises InvalidValue or Refused with all that stands against it.
        """
        config, sources = self._read(wanted)
        if self._tried is not None and self._tried != config.raw:
            raise Refused(f"{config.name} has changed while it was read: reload it again", errno.EAGAIN)
        manager = self._effects.manager
        queues = queue_configs(config)
        keys = None if self._read_keys is None else self._read_keys(config.access)
        busy = [*manager.queues.faults(queues), *self._modules.faults(config.queues)]
        if busy or self._import_faults:  # what the resource module alone has against it, it says when it is asked
            busy += self._resource.module.reload_faults(sources.inventory, sources.groups, force=wanted.force)
            faults = [*self._import_faults, *(f"{config.name}: {fault}" for fault in busy)]
            raise Refused("\n".join(faults), errno.EBUSY if busy else errno.EINVAL)

        def take_up() -> ConfigReloadResponse:
            found = changes(self._raw, config.raw)
            self._raw = in_force(self._raw, config.raw)
            before, self._topology = self._topology, config.network.topology
            manager.requests.banks = banks_of(config)
            changed_keys = self._admit(config.access, keys)
            self._effects.perform(manager.queue_control.reconfigure(queues, config.defaults.queue, self._effects.now_s))
            answer = ConfigReloadResponse(
                [
                    *(_told(change) for change in found if change.is_live),
                    *changed_keys,
                    *rewired(before, config.network.topology, found),
                ],
                [_told(change) for change in found if not change.is_live],
                self._modules.reconfigure(config.queues),
            )
            for change in found:
                log.info("%s changed%s", change.key, "" if change.is_live else ": it applies from the next start on")
            return answer

        return sources, take_up


    # -- policies that queues did not have before -----------------------------------------------------------------

    def _prepare(self, request: RpcRequest, wanted: ReloadRequest, proceed: Callable[[], None]) -> None:
        """`proceed` at once, or once new policies of queues have been tried. Raises what `read` of the file raises."""
        try_imports, config = self._try_imports, self._read(wanted)[0]
        if try_imports is None or _policies(config.raw) <= _policies(self._raw):
            proceed()
            return
        faults: list[str] = []

        def try_all() -> None:
            try:
                try_imports()
            except (FluxschedError, OSError) as exc:
                faults.append(str(exc))

        def tried() -> None:
            self._tried, self._import_faults = config.raw, faults
            try:
                proceed()
            except FluxschedError as exc:
                request.failed(exc)
            finally:
                self._tried, self._import_faults = None, []

        self._background.run(try_all, tried)


def _policies(raw: Mapping[str, Any]) -> set[str]:
    """What the queues of a configuration say of policies and plugins, each as text."""
    queues = in_full(raw).get("queues", {})
    return {repr((queue.get("policy", {}).get("scheduler"), queue.get("plugins"))) for queue in queues.values()}


def _changed_keys(old: Mapping[bytes, AuthorizedKey], new: Mapping[bytes, AuthorizedKey]) -> list[ConfigChange]:
    """Each name with its role; a name that has another pair of keys than before counts as changed, too."""
    before, after = ({key.name: key for key in keys.values()} for keys in (old, new))
    return [
        ConfigChange(f"{AUTHORIZED}.{name}", _role_text(before.get(name)), _role_text(after.get(name)))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def rewired(before: Topology, after: Topology, found: Sequence[KeyChange]) -> list[ConfigChange]:
    """The switches, if they are others while the configuration names the same file."""
    if before == after or any(change.key.partition(".")[0] == TOPOLOGY for change in found):
        return []
    return [ConfigChange(TOPOLOGY, f"{len(before.switches)} switches", f"{len(after.switches)} switches, read anew")]


def _role_text(key: AuthorizedKey | None) -> str | None:
    return None if key is None else str(key.role)


def _told(change: KeyChange) -> ConfigChange:
    return ConfigChange(change.key, change.old, change.new)


