"""The two faces of the package are the same."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

import sandboxd
from sandboxd import aio

FACES = ["Gateway", "Sandbox", "Session", "Files"]


@pytest.mark.parametrize("name", FACES)
def test_same_calls_with_the_same_arguments(name: str) -> None:
    sync, other = getattr(sandboxd, name), getattr(aio, name)
    public = {n for n in dir(other) if not n.startswith("_")} - {"connect"}
    assert public == {n for n in dir(sync) if not n.startswith("_")} - {"connect"}
    for call in public:
        a, b = getattr(sync, call), getattr(other, call)
        if isinstance(a, property):
            continue
        mine, theirs = inspect.signature(a), inspect.signature(b)
        assert list(mine.parameters.values()) == list(theirs.parameters.values()), call


@pytest.mark.parametrize("name", FACES)
def test_every_call_is_documented(name: str) -> None:
    for face in (sandboxd, aio):
        for call, value in vars(getattr(face, name)).items():
            if not call.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{face.__name__}.{name}.{call}"


def test_errors_survive_pickle() -> None:
    result = sandboxd.Result(ended="lost", output="x")
    e = sandboxd.Lost("gone", reason="sandbox_stopped", hint="start it", result=result)
    again = pickle.loads(pickle.dumps(e))
    assert type(again) is sandboxd.Lost
    assert (str(again), again.code, again.reason) == ("gone; start it", "lost", "sandbox_stopped")
    assert again.result == result


def test_import_leaves_ssh_for_the_first_connection() -> None:
    program = "import sandboxd, sandboxd.aio, sys; print('asyncssh' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert out == "False\n"
