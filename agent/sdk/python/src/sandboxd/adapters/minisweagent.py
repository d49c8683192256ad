"""Sandboxes for mini-swe-agent (PyPI mini-swe-agent). In its configuration:

    environment:
      environment_class: sandboxd.adapters.minisweagent.SandboxdEnvironment
      image: sandboxd/base:latest

The daemon is that of this machine, or the one of $SANDBOXD_GATEWAY.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, ConfigDict, model_validator

from .. import errors
from .._exec import setup
from .._sync import Sandbox

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class SandboxdEnvironmentConfig(BaseModel):
    """What the sandbox is made of: the fields of CreateOptions, of which those left out are the
    daemon's default, but one of image and dockerfile is needed; and how commands run in it.

    interpreter: the shell that gets a command as its last argument.
    cwd: directory of commands; empty is the home directory. env: variables of commands.
    forward_env: names of variables of this process that commands get; env has precedence.
    timeout: seconds for a command. max_output: bytes of output that are kept of a command.
    """

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    dockerfile: str | None = None
    network: str | None = None
    allow: list[str] | None = None
    user: str | None = None
    workdir: str | None = None
    sudo: bool | None = None
    memory: str | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: str | None = None
    isolation: str | None = None
    interpreter: list[str] = ["bash", "-lc"]
    cwd: str = ""
    env: dict[str, str] = {}
    forward_env: list[str] = []
    timeout: int = 30
    max_output: int = 16 << 20

    @model_validator(mode="after")
    def _has_image(self) -> SandboxdEnvironmentConfig:
        # The runner of SWE-bench gives images to its own environments only. In the daemon's default
        # image, an agent would work on nothing.
        if not self.image and not self.dockerfile:
            raise ValueError("environment: name an image, such as image: sandboxd/base:latest")
        return self


# What an agent is told of, and may do better. UnicodeError: a lone surrogate in the command.
_FAILURES = (errors.Timeout, errors.Lost, errors.Unavailable, errors.Usage, UnicodeError)
_COMMANDS = {"interpreter", "cwd", "env", "forward_env", "timeout", "max_output"}


class SandboxdEnvironment:
    """A sandbox in which an agent of mini-swe-agent works. It is removed by `cleanup`, with the
    object, or at the end of the program."""

    def __init__(self, *, config_class: type = SandboxdEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        setup(dict.fromkeys(self.config.forward_env, "") | self.config.env, None)  # checks names
        self.sandbox: Sandbox | None = None
        options = self.config.model_dump(exclude_none=True, exclude=_COMMANDS)
        self.sandbox = Sandbox.create(about="an agent of mini-swe-agent", **options)
        self._cleanup = weakref.finalize(self, _remove, self.sandbox)

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Returns what prompts may name: the configuration, and uname of the sandbox."""
        assert self.sandbox, "the sandbox is removed"
        names = ["system", "node", "release", "version", "machine"]
        values = self.sandbox.exec("uname -s; uname -n; uname -r; uname -v; uname -m").text
        uname = dict(zip(names, values.splitlines(), strict=True))
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), uname, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """Returns what a trajectory says of the environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        config = self.config.model_dump(mode="json")
        return {"info": {"config": {"environment": config, "environment_type": kind}}}

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Runs action["command"] with the interpreter in a process of its own.

        Returns output (stdout and stderr in order), returncode and exception_info. returncode is -1
        if the command did not end in time, was lost, or has characters that no command may have;
        exception_info says so. Raises Submitted if the command prints the word for the end of the
        task and then the submission, of max_output at most.
        """
        assert self.sandbox, "the sandbox is removed"
        config = self.config
        forwarded = {k: v for k in config.forward_env if (v := os.environ.get(k)) is not None}
        seconds = timeout or config.timeout
        result: dict[str, Any]
        cut = False
        try:
            done = self.sandbox.exec(
                [*config.interpreter, "exec 2>&1\n" + action.get("command", "")],
                cwd=cwd or config.cwd or None,
                env=forwarded | config.env,
                timeout=seconds,
                max_output=config.max_output,
            )
            output = done.text + done.error_text
            if cut := done.truncated:
                output += f"\n[only the first {config.max_output} bytes are kept]\n"
            result = {"output": output, "returncode": done.exit_code, "exception_info": ""}
        except _FAILURES as e:
            printed = e.stdout.decode("utf-8", "replace") if isinstance(e, errors.Timeout) else ""
            result = {
                "output": printed,
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {e}",
                "extra": {"exception_type": type(e).__name__, "exception": str(e)},
            }
        lines = result["output"].lstrip().splitlines(keepends=True)
        if result["returncode"] == 0 and not cut and lines and lines[0].strip() == _DONE:
            text = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": text}
            raise Submitted({"role": "exit", "content": text, "extra": extra})
        return result

    def cleanup(self) -> None:
        """Removes the sandbox. It may be called again, also after it has failed."""
        if self.sandbox:
            _remove(self.sandbox)
            self._cleanup.detach()
            self.sandbox = None


def _remove(sandbox: Sandbox) -> None:
    if sandbox._portal.inside():  # where the garbage collector happens to run
        threading.Thread(target=_remove, args=(sandbox,)).start()
        return
    with contextlib.suppress(errors.NotFound):
        sandbox.remove()
    sandbox.close()
