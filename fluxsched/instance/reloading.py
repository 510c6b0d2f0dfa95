"""Reloads of the configuration and of the resources of a running instance.

Law: a configuration is read again all or nothing. The file with its targets is judged first, then what jobs, modules
and held targets have against it; if anything is wrong, all of that is answered and nothing has changed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluxsched.config.inventory import Sources
from fluxsched.config.reader import (
    HOST_PROGRAMS,
    Config,
    KeyChange,
    banks_of,
    changes,
    in_force,
    in_full,
    queue_configs,
)
from fluxsched.core.idset import Idset
from fluxsched.core.topology import Topology
from fluxsched.errors import FluxschedError, Refused
from fluxsched.messaging.keys import AccessRules, AuthorizedKey, ReadKeys
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router
from fluxsched.protocol.messages.common import ConfigChange, ConfigReloadResponse
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.resource.inventory import Inventory
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.modules import ModuleService
from fluxsched.services.resource import ResourceService
from fluxsched.store.store import ImmediateWriter, Writer
from fluxsched.system.log import logger

log = logger("config")

Read = Callable[[ReloadRequest], "tuple[Config, Sources]"]
"""Reads the configuration and the resources that a request wants. Raises InvalidValue with all faults."""


AUTHORIZED = "access.authorized-keys"
"""Under this key a change of a key is told."""

TOPOLOGY = "topology"
"""Under this key a change of the file with the switches is told."""


def noted_nowhere(raw: Mapping[str, Any]) -> None:
    """Keep nothing of a configuration."""


TryImports = Callable[[], None]
"""Imports the policies that the file names. Raises InvalidValue with all faults; takes a second and may wait."""


class Reloading:
    """Service of `config.get`, `config.reload` and `resource.reload`."""

    def __init__(
        self,
        config: Config,
        read: Read,
        router: Router,
        effects: JobEffects,
        modules: ModuleService,
        resource: ResourceService,
        inventory: Callable[[Sources], tuple[Inventory, Mapping[str, Idset]]],
        replace_sources: Callable[[ReloadRequest, Sources], None],
        read_keys: ReadKeys | None,
        take_programs: Callable[[Config], None],
        try_imports: TryImports | None = None,
        background: Writer | None = None,
        keep: Callable[[Mapping[str, Any]], None] = noted_nowhere,
    ) -> None:
        """`inventory` returns the inventory of sources and its groups. `replace_sources` replaces that in use; it
        raises Refused if the resource module does not accept it. `take_programs` takes up the programs of a
        configuration, `keep` stores the one in force.
        """
        self._name = config.name
        self._try_imports = try_imports
        self._background = background or ImmediateWriter()
        self._tried: Mapping[str, Any] | None = None
        """Configuration whose new policies were tried, while it is applied."""
        self._import_faults: list[str] = []
        self._inventory = inventory
        self._replace_sources = replace_sources
        self._router = router
        self._read_keys = read_keys
        self._take_programs = take_programs
        has_programs = any(table is not None for table in (config.prolog, config.epilog, config.health))
        self._fixed = () if has_programs else HOST_PROGRAMS
        self._topology = config.network.topology
        self._raw = config.raw
        """Configuration that is in force."""
        self._keep = keep
        keep(config.raw)
        self._read = read
        self._effects = effects
        self._modules = modules
        self._resource = resource
        router.serve(
            {
                "config.get": lambda request: request.respond(in_full(self._raw)),
                "config.reload": self._request,
                "resource.reload": lambda request: self.reload(request, request.payload(ReloadRequest)),
            }
        )

    def reload(self, request: RpcRequest, wanted: ReloadRequest) -> None:
        """Read the configuration and the resources again, and answer `request`. Raises Refused when that cannot be."""

        def proceed() -> None:
            sources, take_up = self.read(wanted)
            self._replace_sources(wanted, sources)
            self._resource.answer(request, take_up())

        self._prepare(request, wanted, proceed)

    def take_hosts(self) -> None:
        """Have the targets of hosts that the engine has got since the last time; the configuration says which groups
        and properties these have. Raises InvalidValue or Refused.
        """
        wanted = ReloadRequest()
        sources, _ = self.read(wanted)
        self._replace_sources(wanted, sources)

    def _request(self, request: RpcRequest) -> None:
        if self._name:
            self.reload(request, ReloadRequest())
        elif self._read_keys is not None:  # all that there is to read again
            rules = self._router.permissions.access.rules
            request.respond(ConfigReloadResponse(self._admit(rules, self._read_keys(rules)), [], []))
        else:
            raise Refused("this instance was started without --config: there is no file to read again", errno.ENOENT)

    def _admit(self, rules: AccessRules, keys: Mapping[bytes, AuthorizedKey] | None) -> list[ConfigChange]:
        """Apply rules and keys to new and to connected peers; return the changes of the keys."""
        access = self._router.permissions.access
        before = access.keys
        access.change(rules, keys)
        cut = self._router.check_peers()
        if keys is not None or cut:
            log.info("%d keys are authorized; %d connections were ended", len(access.keys), cut)
        return _changed_keys(before, access.keys)

    def read(self, wanted: ReloadRequest) -> tuple[Sources, Callable[[], ConfigReloadResponse]]:
        """Return the sources of a reload, and the function that applies the configuration once its resources are
        accepted. Raises InvalidValue or Refused with all objections.
        """
        config, sources = self._read(wanted)
        if self._tried is not None and self._tried != config.raw:
            raise Refused(f"{config.name} has changed while it was read: reload it again", errno.EAGAIN)
        manager = self._effects.manager
        queues = queue_configs(config)
        keys = None if self._read_keys is None else self._read_keys(config.access)
        busy = [*manager.queues.faults(queues), *self._modules.faults(config.queues)]
        if busy or self._import_faults:  # what the resource module alone has against it, it says when it is asked
            busy += self._resource.module.reload_faults(*self._inventory(sources), force=wanted.force)
            faults = [*self._import_faults, *(f"{config.name}: {fault}" for fault in busy)]
            raise Refused("\n".join(faults), errno.EBUSY if busy else errno.EINVAL)

        def take_up() -> ConfigReloadResponse:
            found = changes(self._raw, config.raw, self._fixed)
            self._raw = in_force(self._raw, config.raw, self._fixed)
            self._keep(self._raw)
            before, self._topology = self._topology, config.network.topology
            manager.requests.change_banks(banks_of(config))
            manager.requests.change_limits(config.site_limits)
            self._take_programs(config)
            changed_keys = self._admit(config.access, keys)
            self._effects.perform(manager.queue_control.reconfigure(queues, config.defaults.queue, self._effects.now_s))
            answer = ConfigReloadResponse(
                [
                    *(_told(change) for change in found if change.is_live),
                    *changed_keys,
                    *rewired(before, config.network.topology, found),
                ],
                [_told(change) for change in found if not change.is_live],
                self._modules.reconfigure(config.queues, config.site_limits),
            )
            for change in found:
                note = "" if change.is_live else ": it applies from the next start on"
                log.info("%s changed%s", change.key, note)
            return answer

        return sources, take_up

    # -- policies that queues did not have before -----------------------------------------------------------------

    def _prepare(self, request: RpcRequest, wanted: ReloadRequest, proceed: Callable[[], None]) -> None:
        """Call `proceed` at once, or once new policies of queues have been tried.

        Raises the exceptions of reading the file.
        """
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
    """Return the policies and plugins of the queues in a configuration, each as text."""
    queues = in_full(raw).get("queues", {})
    return {repr((queue.get("policy", {}).get("scheduler"), queue.get("plugins"))) for queue in queues.values()}


def _changed_keys(old: Mapping[bytes, AuthorizedKey], new: Mapping[bytes, AuthorizedKey]) -> list[ConfigChange]:
    """Return each name with its role; a name that has another pair of keys than before counts as changed, too."""
    before, after = ({key.name: key for key in keys.values()} for keys in (old, new))
    return [
        ConfigChange(f"{AUTHORIZED}.{name}", _role_text(before.get(name)), _role_text(after.get(name)))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def rewired(before: Topology, after: Topology, found: Sequence[KeyChange]) -> list[ConfigChange]:
    """Return the switches if they differ while the configuration names the same file."""
    if before == after or any(change.key.partition(".")[0] == TOPOLOGY for change in found):
        return []
    old, new = [len(topology.switches) for topology in (before, after)]
    return [ConfigChange(TOPOLOGY, f"switches: {old}", f"switches: {new}, read anew")]


def _role_text(key: AuthorizedKey | None) -> str | None:
    return None if key is None else str(key.role)


def _told(change: KeyChange) -> ConfigChange:
    return ConfigChange(change.key, change.old, change.new)
