#!/usr/bin/env python3
"""An agent of the OpenAI Agents SDK with a terminal: openai_agents_shell.py MODEL TASK

pip install openai-agents sandboxd. The SDK reads the key of the model from OPENAI_API_KEY."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool
from sandboxd import Busy, Usage
from sandboxd.aio import Sandbox


def tools(sandbox):
    async def said(call):
        try:
            result = await call
        except (Busy, Usage) as e:  # what the model may do about it
            return f"error: {e}"
        return json.dumps({"ended": result.ended, "exit_code": result.exit_code,
                           "output": result.output, "asks": result.prompt})

    @function_tool
    async def run(command: str) -> str:
        """Run a shell command. If it ended "waiting", it asks: answer it. If "deadline", wait."""
        return await said(sandbox.run(command, timeout=60))

    @function_tool
    async def answer(text: str) -> str:
        """Type a line to the program that asks."""
        return await said(sandbox.answer(text, timeout=60))

    @function_tool
    async def wait() -> str:
        """Wait until the program that runs has ended, or asks."""
        return await said(sandbox.wait(timeout=60))

    return [run, answer, wait]


async def main(model, task):
    async with await Sandbox.create() as sandbox:
        agent = Agent(name="worker", model=model, tools=tools(sandbox))
        return (await Runner.run(agent, task)).final_output


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(asyncio.run(main(*sys.argv[1:])))
