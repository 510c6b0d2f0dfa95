"""Our broker module as it is, with its conversation recorded for `test_replay`.

flux module load tests/flux/broker/record/sched-fluxsched.py record=FILE policy=easy ...
"""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
OPTION = "record="
PYTHON_PATH = "python-path="


def mod_main(h: Any, *args: str) -> None:
    """Run the module, called by Flux; its bridge stands behind a recorder."""
    sys.path += [str(ROOT), *(word.removeprefix(PYTHON_PATH) for word in args if word.startswith(PYTHON_PATH))]
    from fluxsched.flux import bridge
    from tests.flux.broker.recording import Recorder

    spec = spec_from_file_location("sched_fluxsched", ROOT / "fluxsched" / "flux" / "broker" / "sched-fluxsched.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    (path,) = [word.removeprefix(OPTION) for word in args if word.startswith(OPTION)]
    make, read_site = bridge.Bridge, bridge.read_site

    def read_recorded(config: Any) -> Any:
        stream.write(json.dumps(["config", config]) + "\n")
        return read_site(config)

    def make_recorded(handle: Any, options: Any, clock: Any, site: Any) -> Recorder:
        recorder = Recorder(handle, clock, stream)
        recorder.bridge = make(recorder, options, recorder, site)
        return recorder

    with open(path, "w", buffering=1, encoding="utf-8") as stream:
        bridge.Bridge, bridge.read_site = make_recorded, read_recorded
        module.mod_main(h, *(word for word in args if not word.startswith(OPTION)))
