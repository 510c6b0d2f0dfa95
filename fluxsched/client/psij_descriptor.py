"""The line by which PSI/J finds our executor: the wheel has a copy of this file in `psij-descriptors/`."""

from packaging.version import Version
from psij.descriptor import Descriptor

from fluxsched import __version__

__PSI_J_EXECUTORS__ = [
    Descriptor(name="fluxsched", version=Version(__version__), cls="fluxsched.client.psij.FluxschedJobExecutor")
]
