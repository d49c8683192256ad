"""A daemon of the tests' own, with a directory of its own, which the last of them stops."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandboxd

IMAGE = os.environ.get("SANDBOXD_TEST_IMAGE", "sandboxd/base:latest")
_numbers = itertools.count()


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a daemon that runs."""
    home = tmp_path_factory.mktemp("state")
    os.environ.update(
        SANDBOXD_STATE=str(home),
        SANDBOXD_SSH="127.0.0.1:0",
        SANDBOXD_HTTP="127.0.0.1:0",
        SANDBOXD_MOUNT_ROOTS=str(tmp_path_factory.getbasetemp().resolve()),
    )
    os.environ.pop("SANDBOXD_GATEWAY", None)
    subprocess.run(["sandboxd", "up"], check=True)
    yield home
    subprocess.run(["sandboxd", "rm", "--all", "--force"], check=True)
    subprocess.run(["sandboxd", "down"], check=True)


@pytest.fixture(scope="session")
def up(state: Path) -> dict[str, str]:
    """What `sandboxd up --json` prints."""
    out = subprocess.run(["sandboxd", "up", "--json"], check=True, capture_output=True).stdout
    return dict(json.loads(out))


@pytest.fixture(scope="session")
def shared(state: Path) -> Iterator[sandboxd.Sandbox]:
    """A sandbox for tests that leave it as it was."""
    with sandboxd.Sandbox.create("shared", image=IMAGE) as sbx:
        yield sbx


@pytest.fixture
def session(shared: sandboxd.Sandbox) -> Iterator[sandboxd.Session]:
    """A session of the shared sandbox, for one test."""
    made = shared.session(f"test-{next(_numbers)}")
    yield made
    with contextlib.suppress(sandboxd.NotFound):  # the test has not started it
        made.end()
