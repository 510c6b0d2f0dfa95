"""Who may connect, and as whom: rules, keys and their files."""

from __future__ import annotations

import errno
import os

import pytest

from fluxsched.client.find import key_for, own_key
from fluxsched.core.role import Role, parse_role
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused
from fluxsched.messaging import keys as keyring
from fluxsched.messaging.keys import (
    KEY_FILE_BYTES_MAX,
    KEYS_MAX,
    NAME_CHARS_MAX,
    USERID_MAX,
    AccessRules,
    AuthorizedKey,
    check_key_name,
    generate,
    generate_server,
    read_authorized,
    read_keyring,
    read_public,
    read_secret,
    user_id,
)
from fluxsched.messaging.peers import NO_USER, Access

# Who a peer is.


OWNER, ANN, EVE = os.getuid(), os.getuid() + 1, os.getuid() + 2


def test_users_of_this_machine():
    closed, shared = Access(), Access(AccessRules(allow_guests=True, admin_users=frozenset({ANN})))
    assert [closed.admit_user(user) for user in (OWNER, ANN, EVE)] == [0, errno.EPERM, errno.EPERM]
    assert [shared.admit_user(user) for user in (OWNER, ANN, EVE)] == [0, 0, 0]
    assert [shared.identify(user, None) for user in (OWNER, ANN, EVE)] == [
        (Role.OWNER, OWNER, None), (Role.ADMIN, ANN, None), (Role.GUEST, EVE, None),
    ]  # fmt: skip
    assert closed.identify(None, None) == (Role.OWNER, OWNER, None), "where the owner alone can connect"
    admins = Access(AccessRules(admin_users=frozenset({ANN})))
    assert [admins.admit_user(user) for user in (ANN, EVE)] == [0, errno.EPERM]


def test_root_is_the_owner_only_where_the_rules_say_so():
    for allowed, verdict in ((True, 0), (False, errno.EPERM)):
        access = Access(AccessRules(allow_root_owner=allowed))
        access.owner = 1000
        assert access.admit_user(0) == verdict


def test_holders_of_keys_act_for_their_account():
    keys = [
        AuthorizedKey("ann", Role.ADMIN, b"a", None), AuthorizedKey("bob", Role.GUEST, b"b", ANN),
        AuthorizedKey("eve", Role.GUEST, b"e", None), AuthorizedKey("me", Role.OWNER, b"m", None),
    ]  # fmt: skip
    access = Access(None, {key.public: key for key in keys})
    assert [access.identify(None, key.public) for key in keys] == [
        (Role.ADMIN, OWNER, "ann"), (Role.GUEST, ANN, "bob"), (Role.GUEST, NO_USER, "eve"), (Role.OWNER, OWNER, "me"),
    ]  # fmt: skip
    assert access.admit_key(b"a", "10.0.0.1")
    access.change(AccessRules(), {})
    assert not access.admit_key(b"a", "10.0.0.1")
    assert access.identify(None, b"a") is None


def test_rules_by_which_sockets_were_bound_stay_until_a_restart():
    access = Access(AccessRules(allow_guests=True))
    access.change(AccessRules(private_jobs=True), None)
    assert (access.rules.allow_guests, access.rules.private_jobs) == (True, True)


def test_roles():
    assert [parse_role(name) for name in ("guest", "admin", "owner")] == [role for role in Role if role > Role.KEEPER]
    for name in ("", "root", "OWNER", "keeper"):
        with pytest.raises(InvalidValue, match="is not one of guest, admin, owner"):
            parse_role(name)


# Key files: what is refused is named, and no text repeats a secret.


TCP = f"tcp://{'a' * 64}@127.0.0.1:1"


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "keys").mkdir(mode=0o700)
    return tmp_path / "keys"


def test_what_is_written_is_read_whatever_the_umask(directory):
    before = os.umask(0o277)
    try:
        secret, public = generate("ann", Role.ADMIN, 1000, directory)
    finally:
        os.umask(before)
    assert (secret.stat().st_mode & 0o777, public.stat().st_mode & 0o777) == (0o600, 0o644)
    pair = read_secret(secret)
    assert read_public(public) == AuthorizedKey("ann", Role.ADMIN, pair.public, 1000)
    assert read_secret(generate_server(directory)).public != pair.public


def test_keys_are_never_overwritten(directory):
    secret, public = generate("ann", Role.GUEST, None, directory)
    kept = secret.read_text()
    for gone in (secret, public):
        gone.rename(directory / "aside")
        with pytest.raises(Refused, match="keys are not overwritten") as refused:
            generate("ann", Role.OWNER, None, directory)
        assert refused.value.errnum == errno.EEXIST
        (directory / "aside").rename(gone)
    assert secret.read_text() == kept


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o444])
def test_a_secret_that_others_may_read_is_refused_by_name(directory, mode):
    secret, _ = generate("ann", Role.GUEST, None, directory)
    secret.chmod(mode)
    with pytest.raises(Refused, match=f"ann.key has mode {mode:04o}: others may read it; chmod 600"):
        read_secret(secret)


def test_a_public_file_given_as_a_secret_one_is_named(directory):
    """It was said to be open to others, and chmod 600 proposed."""
    _, public = generate("ann", Role.GUEST, None, directory)
    with pytest.raises(InvalidValue, match=r"ann.pub is a public key, .* the holder's own is its .key file"):
        read_secret(public)


@pytest.mark.parametrize("which", ["file", "directory"])
def test_authorized_keys_that_others_may_change_are_refused_by_name(directory, which):
    secret, public = generate("ann", Role.GUEST, None, directory)
    secret.unlink()
    (public if which == "file" else directory).chmod(0o666 if which == "file" else 0o777)
    with pytest.raises(FluxschedError, match="others may change it; chmod"):
        read_authorized(directory)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_key_of_another_user_is_refused(directory):
    secret, _ = generate("ann", Role.GUEST, None, directory)
    os.chown(secret, 65534, 65534)
    with pytest.raises(Refused, match="belongs to user 65534: it must be yours or root's"):
        read_secret(secret)


WRONG = {
    "empty": "",
    "noise": "\x00\x01garbage",
    "not TOML": "public-key: SECRET",
    "key twice": 'public-key = "SECRET"\npublic-key = "SECRET"\n',
    "short": 'public-key = "abc"\nsecret-key = "SECRET"\n',
    "number": "public-key = 7\n",
    "foreign": f'public-key = "{"b" * 64}"\nsecret-key = "{"c" * 64}"\n',
    "more": f'public-key = "{"b" * 64}"\nsecret-key = "{"c" * 64}"\nrole = "owner"\n',
    "latin-1": "# \xe9 SECRET",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_file_that_is_no_key_is_named_and_not_repeated(directory, text):
    path = directory / "ann.key"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(InvalidValue, match=r"ann\.key") as raised:
        read_secret(path)
    assert "SECRET" not in str(raised.value)
    assert "c" * 64 not in str(raised.value)


def test_things_that_are_no_files(directory):
    os.mkfifo(directory / "pipe.key", 0o600)
    for name, text in (("pipe.key", "is not a file"), (".", "is not a file"), ("missing", "cannot be read: No such")):
        with pytest.raises(FluxschedError, match=text):
            read_secret(directory / name)


def test_a_key_file_has_a_limit(directory):
    secret, _ = generate("ann", Role.GUEST, None, directory)
    room = KEY_FILE_BYTES_MAX - secret.stat().st_size
    secret.write_text(secret.read_text() + "#" * room)
    read_secret(secret)
    secret.write_text(secret.read_text() + "#")
    with pytest.raises(LimitExceeded, match=str(KEY_FILE_BYTES_MAX)):
        read_secret(secret)


def test_names_of_keys():
    assert check_key_name("ann@login-1.example") == "ann@login-1.example"
    assert check_key_name("a" * NAME_CHARS_MAX)
    for name in ("", ".ann", "../ann", "a/b", "a b", "a\n", "-x", "a" * (NAME_CHARS_MAX + 1)):
        with pytest.raises(InvalidValue, match="key name"):
            check_key_name(name)


def test_a_directory_is_read_as_a_whole_and_every_fault_is_named(directory):
    for name, role in (("ann", Role.ADMIN), ("bob", Role.GUEST)):
        generate(name, role, None, directory)[0].unlink()
    (directory / ".hidden").write_text("x")
    assert {key.name: key.role for key in read_authorized(directory).values()} == {"ann": Role.ADMIN, "bob": Role.GUEST}
    (directory / "twin.pub").write_text((directory / "bob.pub").read_text())
    (directory / "notes.txt").write_text("x")
    (directory / "bad.pub").write_text('role = "king"\npublic-key = "' + "a" * 64 + '"\n')
    (directory / "secret.pub").write_text('role = "guest"\nsecret-key = "SECRET"\n')
    with pytest.raises(InvalidValue) as raised:
        read_authorized(directory)
    said = str(raised.value).splitlines()
    assert len(said) == 4
    for line, text in zip(
        said,
        ["bad.pub: role 'king' is not one of guest, admin, owner", "notes.txt: only keys belong here, as NAME.pub",
         "secret.pub holds a secret key", "bob.pub and twin.pub hold the same key: remove one of them"],
        strict=True,
    ):  # fmt: skip
        assert text in line
    assert "SECRET" not in str(raised.value)


def test_a_directory_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(InvalidValue, match=r"authorized keys .*missing cannot be read: No such file"):
        read_authorized(tmp_path / "missing")

    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(keyring.os, "listdir", denied)
    with pytest.raises(InvalidValue, match="cannot be read: Permission denied"):
        read_authorized(tmp_path)


def test_a_directory_has_a_limit(directory, monkeypatch):
    monkeypatch.setattr(keyring.os, "listdir", lambda path: ["x.pub"] * (KEYS_MAX + 1))
    with pytest.raises(LimitExceeded, match=f"limit {KEYS_MAX}"):
        read_authorized(directory)


def test_where_a_server_finds_its_keys(directory, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory))
    usual = directory / "fluxsched"
    assert read_keyring(AccessRules()) is None
    own = read_secret(generate_server(usual))
    found = read_keyring(AccessRules())
    assert found is not None
    assert (found.own.public, found.authorized) == (own.public, {})
    generate("ann", Role.GUEST, None, usual / "authorized-keys")[0].unlink()
    found = read_keyring(AccessRules())
    assert found is not None
    assert [key.name for key in found.authorized.values()] == ["ann"]
    with pytest.raises(FluxschedError, match="cannot be read: No such file"):
        read_keyring(AccessRules(server_key=directory / "nowhere"))
    with pytest.raises(FluxschedError, match="cannot be read: No such file"):
        read_keyring(AccessRules(authorized_keys=directory / "nowhere"))


def test_where_a_client_finds_its_key(directory, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory))
    monkeypatch.delenv("FLUXSCHED_KEY", raising=False)
    assert key_for("ipc:///x") is key_for("tcp://127.0.0.1:1") is None
    with pytest.raises(FluxschedError, match=r"fluxsched/client\.key is not there: make one with `fluxsched keygen"):
        key_for(TCP)
    files = [generate(name, Role.GUEST, None, directory)[0] for name in ("usual", "variable", "option")]
    usual, variable, option = (read_secret(file).public for file in files)
    (directory / "fluxsched").mkdir()
    files[0].rename(directory / "fluxsched" / "client.key")
    assert own_key().public == usual
    monkeypatch.setenv("FLUXSCHED_KEY", str(files[1]))
    assert own_key().public == variable
    assert own_key(files[2]).public == option


def test_users_by_name_or_number():
    assert (user_id("root"), user_id(USERID_MAX)) == (0, USERID_MAX)
    for user in ("no such user", USERID_MAX + 1, -1, True, 1.5, "a\0b"):
        with pytest.raises(InvalidValue, match="is unknown on this machine"):
            user_id(user)
