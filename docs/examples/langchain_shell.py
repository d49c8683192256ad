#!/usr/bin/env python3
"""A LangChain agent with a terminal: langchain_shell.py MODEL TASK. pip install langchain sandboxd

MODEL is a name such as openai:gpt-5, whose package is installed as well."""

import json
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from sandboxd import Busy, Sandbox, Usage


def tools(sandbox):
    def said(call, *args):
        try:
            result = call(*args, timeout=60)
        except (Busy, Usage) as e:  # what the model may do about it
            return f"error: {e}"
        return json.dumps({"ended": result.ended, "exit_code": result.exit_code,
                           "output": result.output, "asks": result.prompt})

    @tool
    def run(command: str) -> str:
        """Run a shell command. If it ended "waiting", it asks: answer it. If "deadline", wait."""
        return said(sandbox.run, command)

    @tool
    def answer(text: str) -> str:
        """Type a line to the program that asks."""
        return said(sandbox.answer, text)

    @tool
    def wait() -> str:
        """Wait until the program that runs has ended, or asks."""
        return said(sandbox.wait)

    return [run, answer, wait]


def main(model, task):
    with Sandbox.create() as sandbox:
        agent = create_agent(model, tools(sandbox))
        return agent.invoke({"messages": [("user", task)]})["messages"][-1].text


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(main(*sys.argv[1:]))
