"""Decorator for a class that mypyc compiles although plain classes inherit from it, such as policies of sites.

Such a class has its docstring as `__doc__: Final` where it is printed, as those of policies are: mypyc drops the
others.
"""

# Not compiled: mypyc is told by the decorator of mypy_extensions, which only mypyc and mypy have to find

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    Class = TypeVar("Class")

    def mypyc_attr(**attributes: Any) -> Callable[[Class], Class]:
        """Return a decorator that leaves the class as it is."""
        return lambda cls: cls
