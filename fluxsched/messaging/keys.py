"""Keys of servers and clients as files of TOML, one key each, a server's keyring, and the rules of `[access]`.

Law: no error, log or listing repeats what a secret file holds; a secret file that others may read, and a public one
that others may change, is refused by name. A file is checked and read through one descriptor, so it cannot be exchanged
in between. A keyring is read as a whole from a directory: one wrong file is an error with its name, and nothing of the
directory is taken, since who may connect is never a guess.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fluxsched.core.role import Role, parse_role
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused
from fluxsched.system.files import make_private
from fluxsched.transport.base import KeyPair, parse_key

SECRET_SUFFIX, PUBLIC_SUFFIX = ".key", ".pub"

KEY_FILE_BYTES_MAX = 4096
"""A key file has some 200 bytes; the rest is room for comments."""

NAME_CHARS_MAX = 64
"""Maximum length of the name of a key, which is shown in lists and logs."""

KEPT = "exists: keys are not overwritten; move it away, or choose another place"
READ_BY_OTHERS, WRITTEN_BY_OTHERS = 0o077, 0o022
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")


class AuthorizedKey(NamedTuple):
    """A public key that may connect. `userid` is the account whose jobs are the holder's own; None: of none."""

    name: str
    role: Role
    public: bytes
    userid: int | None


def check_key_name(name: str) -> str:
    """Return the name of a key, which is that of its file. Raises InvalidValue."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        what = f"is not 1-{NAME_CHARS_MAX} letters, digits and . _ @ - after a letter or digit"
        raise InvalidValue(f"key name {name[:NAME_CHARS_MAX]!r} {what}")
    return name


def write_secret(path: Path, pair: KeyPair) -> None:
    """Write a new secret file, mode 0600. Raises Refused (EEXIST) if there is one: a key is never overwritten."""
    text = "# A secret key of fluxsched. Keep it to yourself: where it goes, its access goes.\n"
    _write(path, text + f'public-key = "{pair.public.hex()}"\nsecret-key = "{pair.secret.hex()}"\n', 0o600)


def write_public(path: Path, key: AuthorizedKey) -> None:
    """Write the file that belongs in a server's directory of authorized keys."""
    user = "" if key.userid is None else f"user = {key.userid}\n"
    text = f'# The public key of {key.name}, for the directory of authorized keys of a server.\nrole = "{key.role}"\n'
    _write(path, f'{text}{user}public-key = "{key.public.hex()}"\n', 0o644)


def _write(path: Path, text: str, mode: int) -> None:
    make_private(path.parent)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise Refused(f"{path} {KEPT}", errno.EEXIST) from None
    with open(fd, "w") as file:
        os.fchmod(fd, mode)  # whatever the umask
        file.write(text)


def read_secret(path: Path) -> KeyPair:
    """Return the keys in a secret file.

    Raises Refused for one that others may read, InvalidValue for one that is no key.
    """
    if path.suffix == PUBLIC_SUFFIX:
        raise InvalidValue(f"{path} is a public key, for a server: the holder's own is its {SECRET_SUFFIX} file")
    table = _table(path, "secret key", READ_BY_OTHERS, f"chmod 600 {path}")
    public, secret = (_key(path, table, name) for name in ("public-key", "secret-key"))
    from fluxsched.transport.sockets import public_of  # a real Flux reads configurations without zmq

    _check_rest(path, table)
    if public_of(secret) != public:
        raise InvalidValue(f"{path}: its public key does not belong to its secret key")
    return KeyPair(public, secret)


def read_public(path: Path) -> AuthorizedKey:
    """Return the key in a public file, with the file's name.

    Raises Refused for one that others may change, InvalidValue.
    """
    name = check_key_name(path.name.removesuffix(PUBLIC_SUFFIX))
    table = _table(path, "public key", WRITTEN_BY_OTHERS, f"chmod 644 {path}")
    if "secret-key" in table:
        raise InvalidValue(f"{path} holds a secret key: only {name}{PUBLIC_SUFFIX} belongs here; make new keys")
    public = _key(path, table, "public-key")
    role, user = table.pop("role", None), table.pop("user", None)
    _check_rest(path, table)
    try:
        return AuthorizedKey(name, parse_role(str(role)), public, None if user is None else user_id(user))
    except InvalidValue as fault:
        raise InvalidValue(f"{path}: {fault}") from None


def check_mode(path: Path, found: os.stat_result, forbidden: int, remedy: str) -> None:
    """Raise Refused (EPERM) for a file that belongs to another user than us or root, or is open to others."""
    if found.st_uid not in (os.geteuid(), 0):
        raise Refused(f"{path} belongs to user {found.st_uid}: it must be yours or root's", errno.EPERM)
    if found.st_mode & forbidden:
        what = "read" if forbidden == READ_BY_OTHERS else "change"
        mode = stat.S_IMODE(found.st_mode)
        raise Refused(f"{path} has mode {mode:04o}: others may {what} it; {remedy}", errno.EPERM)


def _table(path: Path, what: str, forbidden: int, remedy: str) -> dict[str, Any]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as fault:
        raise FluxschedError(f"{what} {path} cannot be read: {fault.strerror}", fault.errno) from fault
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidValue(f"{what} {path} is not a file")
        check_mode(path, found, forbidden, remedy)
        data = os.read(fd, KEY_FILE_BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(data) > KEY_FILE_BYTES_MAX:
        raise LimitExceeded(f"{what} {path} is longer than {KEY_FILE_BYTES_MAX} bytes: it is not a key file")
    try:
        return tomllib.loads(data.decode())
    except ValueError:  # its text could repeat the secret
        raise InvalidValue(f"{path} is not a {what}: create one with `fluxsched keygen`") from None


def _key(path: Path, table: dict[str, Any], name: str) -> bytes:
    value = table.pop(name, None)
    if not isinstance(value, str):
        raise InvalidValue(f"{path} has no {name}: it is not a key file; create one with `fluxsched keygen`")
    try:
        return parse_key(value)
    except InvalidValue as fault:
        raise InvalidValue(f"{path}: {name}: {fault}") from None


def _check_rest(path: Path, table: dict[str, Any]) -> None:
    if table:
        raise InvalidValue(f"{path}: unknown {', '.join(sorted(table))[:80]}")


def generate_server(directory: Path) -> Path:
    """Make the keys of a server: where they are. Raises Refused (EEXIST)."""
    from fluxsched.transport.sockets import make_key_pair

    write_secret(directory / SERVER_KEY_NAME, make_key_pair())
    return directory / SERVER_KEY_NAME


def generate(name: str, role: Role, userid: int | None, directory: Path) -> tuple[Path, Path]:
    """Make the keys of a client: where its secret and its public file are. Raises InvalidValue or Refused."""
    from fluxsched.transport.sockets import make_key_pair

    pair = make_key_pair()
    secret, public = (directory / f"{check_key_name(name)}{suffix}" for suffix in (SECRET_SUFFIX, PUBLIC_SUFFIX))
    if public.exists():
        raise Refused(f"{public} {KEPT}", errno.EEXIST)
    write_secret(secret, pair)
    write_public(public, AuthorizedKey(name, role, pair.public, userid))
    return secret, public


# ---- rules of keys

USERID_MAX = 0xFFFFFFFD
"""The two ids above mean any user and none."""
SERVER_KEY_NAME, CLIENT_KEY_NAME, AUTHORIZED_NAME = "server.key", "client.key", "authorized-keys"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Roles of this machine's users, and where the keys of all others are (None: in the usual place)."""

    allow_guests: bool = False
    """True if other users may connect at local sockets that were bound for them, with the rights of guests."""
    allow_root_owner: bool = False
    """True if root has the rights of the owner there."""
    admin_users: frozenset[int] = frozenset()
    """Users who have the rights of admins there."""
    private_jobs: bool = False
    """Guests see no jobs but their own."""
    run_as_user: bool = False
    """True if users submit jobs of their own, whose tasks run as them: the instance is root's, and a site's."""
    server_key: Path | None = None
    authorized_keys: Path | None = None


def key_directory() -> Path:
    """Return the default directory of keys: `~/.config/fluxsched`."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "fluxsched"


def parse_user(text: str) -> int:
    """Return the id of an account, given by its name or, in digits, its number. Raises InvalidValue."""
    return user_id(int(text) if text.isdecimal() and len(text) <= 10 else text)


def user_id(user: object) -> int:
    """Return the id of an account, given by name or number. Raises InvalidValue."""
    if type(user) is int and 0 <= user <= USERID_MAX:
        return user
    try:
        return pwd.getpwnam(str(user)).pw_uid
    except (KeyError, ValueError):
        raise InvalidValue(f"user {str(user)[:40]!r} is unknown on this machine: give a name or a user id") from None


# ---- the keyring

KEYS_MAX = 4096
"""Keys in a directory: all are read at a start and at each reload, some 0.1 ms each."""


ReadKeys = Callable[[AccessRules], Mapping[bytes, AuthorizedKey]]


class Keyring(NamedTuple):
    """A server's keys; `authorized` are those of its clients, by public key."""

    own: KeyPair
    authorized: dict[bytes, AuthorizedKey]


def read_keyring(rules: AccessRules) -> Keyring | None:
    """Return the keys that `rules` name, or those in the usual place; None if no server key is there and none was
    named.

    Raises InvalidValue or Refused with all that is wrong.
    """
    path = rules.server_key or key_directory() / SERVER_KEY_NAME
    if rules.server_key is None and not path.exists():
        return None
    return Keyring(read_secret(path), authorized_keys(rules))


def authorized_keys(rules: AccessRules) -> dict[bytes, AuthorizedKey]:
    """Return the keys in the directory that `rules` name, or in the usual one, if that is there.

    Raises as `read_authorized`.
    """
    directory = authorized_directory(rules)
    return {} if rules.authorized_keys is None and not directory.exists() else read_authorized(directory)


def authorized_directory(rules: AccessRules) -> Path:
    """Return the directory of the `.pub` files that `authorized_keys` reads."""
    return rules.authorized_keys or key_directory() / AUTHORIZED_NAME


def read_authorized(directory: Path) -> dict[bytes, AuthorizedKey]:
    """Return the keys in a directory.

    Raises InvalidValue naming each file that is wrong, and keys that are there twice.
    """
    found: dict[bytes, AuthorizedKey] = {}
    faults = []
    for name in _names(directory):
        path = directory / name
        try:
            if not name.endswith(PUBLIC_SUFFIX):
                raise InvalidValue(f"{path}: only keys belong here, as NAME{PUBLIC_SUFFIX}: move it away")
            key = read_public(path)
            other = found.setdefault(key.public, key)
            if other is not key:
                same = f"{other.name}{PUBLIC_SUFFIX} and {name} hold the same key"
                raise InvalidValue(f"{directory}: {same}: remove one of them")
        except FluxschedError as fault:
            faults.append(str(fault))
    if faults:
        raise InvalidValue("\n".join(faults))
    return found


def _names(directory: Path) -> list[str]:
    """Return the names of the directory's files except hidden ones."""
    try:
        check_mode(directory, directory.stat(), WRITTEN_BY_OTHERS, f"chmod 755 {directory}")
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError as fault:
        text = f"directory of authorized keys {directory} cannot be read: {fault.strerror}"
        raise InvalidValue(text, fault.errno or errno.EIO) from fault
    if len(names) > KEYS_MAX:
        raise LimitExceeded(f"{directory} holds {len(names)} files, limit {KEYS_MAX}: remove keys that are not used")
    return names
