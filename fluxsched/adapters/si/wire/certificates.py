"""Certificates of a service and of its clients: which belong together, and what needs none."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from fluxsched.adapters.si.wire.address import Address
from fluxsched.errors import InvalidValue


class ServerCertificates(NamedTuple):
    """Ours with its key, and those that clients' are checked against; all PEM."""

    cert: bytes
    key: bytes
    client_ca: bytes

    def credentials(self) -> grpc.ServerCredentials:
        """Return the certificates as credentials of gRPC."""
        pair = (self.key, self.cert)
        return grpc.ssl_server_credentials([pair], self.client_ca, require_client_auth=True)


def certificates_of(
    address: Address, is_insecure: bool, cert: Path | None, key: Path | None, client_ca: Path | None
) -> ServerCertificates | None:
    """Return the certificates that protect an address; None for a local socket, and for loopback if that is wanted.

    Raises InvalidValue.
    """
    given = [path for path in (cert, key, client_ca) if path is not None]
    if address.path is not None:
        if given or is_insecure:
            raise InvalidValue(f"{address} is a local socket: it takes neither certificates nor --insecure")
        return None
    if is_insecure:
        if given:
            raise InvalidValue("--insecure takes no certificates: leave one or the other out")
        if not address.is_loopback:
            raise InvalidValue(f"--insecure is for loopback alone, and {address.host} is not: name certificates")
        return None
    if len(given) < len(ServerCertificates._fields):
        raise InvalidValue(
            f"{address} needs --cert, --key and --client-ca"
            + (", or --insecure to admit every process of this machine" if address.is_loopback else "")
        )
    _check(*given)
    return ServerCertificates(*(path.read_bytes() for path in given))


def _check(cert: Path, key: Path, ca: Path) -> None:
    """Raises InvalidValue for files that are no certificates, or do not belong together: gRPC would not say which."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as fault:
        why = fault.reason or fault
        raise InvalidValue(f"{cert} and {key} are not a certificate (PEM) and its key: {why}") from None
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as fault:
        raise InvalidValue(f"{ca} has no certificates (PEM): {fault.reason or fault}") from None


class ClientCertificates(NamedTuple):
    """Ours with its key, and those that the service's is checked against; all PEM."""

    cert: bytes
    key: bytes
    ca: bytes

    @classmethod
    def of(cls, address: Address, cert: Path | None, key: Path | None, ca: Path | None) -> ClientCertificates | None:
        """Read from files; None if none is named. Raises InvalidValue for a part of them, or with a local socket."""
        given = [path for path in (cert, key, ca) if path is not None]
        if not given:
            return None
        if address.path is not None:
            raise InvalidValue(f"{address} is a local socket and takes no certificates")
        if len(given) < len(cls._fields):
            raise InvalidValue("--cert, --key and --ca belong together: name all three")
        _check(*given)
        return cls(*(path.read_bytes() for path in given))

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the certificates as credentials of gRPC."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)
