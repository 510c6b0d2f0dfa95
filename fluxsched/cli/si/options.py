"""What the commands of the scheduler interface share: the packages that they need, addresses, certificates."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from fluxsched.errors import Refused

PACKAGES = {"grpc": "grpcio", "google.protobuf": "protobuf", "yaml": "PyYAML"}
"""Modules that the interface needs, and the packages that have them."""


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def need_packages() -> None:
    """Raises Refused, saying what to install, where a package of the extra is missing.

    gRPC's own log on stderr is silenced, unless it is asked for: what goes wrong is in our errors.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    missing = [package for module, package in PACKAGES.items() if not _is_there(module)]
    if missing:
        raise Refused(f"needs {', '.join(missing)}: pip install 'fluxsched[si]'")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package around it
        return False


def address_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """ADDRESS of a service, and the certificates to present to one on TCP."""
    for decorate in (
        click.option("--ca", metavar="FILE", type=FILE, help="Certificates (PEM) that vouch for the service."),
        click.option("--key", metavar="FILE", type=FILE, help="The key (PEM) of --cert."),
        click.option("--cert", metavar="FILE", type=FILE, help="The client's certificate (PEM), for a service on TCP."),
        click.argument("address", metavar="[ADDRESS]", required=False),
    ):  # fmt: skip
        command = decorate(command)
    return command
