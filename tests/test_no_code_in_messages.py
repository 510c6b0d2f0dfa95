"""No message can become code: nothing unpickles, evaluates text or gives text to a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from .source import Source, imports, sources_below

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "asyncio.create_subprocess_shell", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
}  # fmt: skip
ALLOWED = {
    "fluxsched/cli/bulksubmit.py": "--define: an expression of the command line, in the typist's own process",
    "fluxsched/client/executor.py": "calls of the user's own program, and what their own jobs return",
    "fluxsched/client/run_call.py": "the same, in a job of that user",
}


def violations(source: Source) -> Iterator[str]:
    for line, name in imports(source):
        if name.split(".")[0] in MODULES:
            yield source.at(line, f"imports {name}: decode with msgspec")
    for node in source.nodes:
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                yield source.at(node.lineno, f"calls {name}: a text must not become code")
            yield from (
                source.at(node.lineno, f"calls {name} with a shell: give it a list of words")
                for keyword in node.keywords
                if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
            )


def test_no_source_unpickles_evaluates_or_uses_a_shell() -> None:
    found = {source.path: list(violations(source)) for source in sources_below("fluxsched")}
    assert [line for path, lines in found.items() if path not in ALLOWED for line in lines] == []
    assert all(found[path] for path in ALLOWED), "an exception is no longer needed: delete it"


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "def f(x):\n    return eval(x)", "os.system(x)",
     "subprocess.run(x, shell=True)", "subprocess.Popen(x, shell=wanted)", "yaml.load(x)"],
)  # fmt: skip
def test_what_would_is_seen(text: str) -> None:
    assert len(list(violations(Source("fluxsched/instance/a.py", text)))) == 1
