#!/usr/bin/env python3
"""A Pydantic AI agent with a terminal: pydantic_ai_shell.py MODEL TASK

pip install pydantic-ai sandboxd. MODEL is a name such as anthropic:claude-sonnet-4-5."""

import asyncio
import sys

from pydantic_ai import Agent, RunContext
from sandboxd import Busy, Usage
from sandboxd.aio import Sandbox

agent = Agent(deps_type=Sandbox)


async def said(call):
    try:
        result = await call
    except (Busy, Usage) as e:  # what the model may do about it
        return {"error": str(e)}
    return {"ended": result.ended, "exit_code": result.exit_code, "output": result.output,
            "asks": result.prompt}


@agent.tool
async def run(context: RunContext[Sandbox], command: str) -> dict:
    """Run a shell command. If it ended "waiting", it asks: answer it. If "deadline", wait."""
    return await said(context.deps.run(command, timeout=60))


@agent.tool
async def answer(context: RunContext[Sandbox], text: str) -> dict:
    """Type a line to the program that asks."""
    return await said(context.deps.answer(text, timeout=60))


@agent.tool
async def wait(context: RunContext[Sandbox]) -> dict:
    """Wait until the program that runs has ended, or asks."""
    return await said(context.deps.wait(timeout=60))


async def main(model, task):
    async with await Sandbox.create() as sandbox:
        return (await agent.run(task, model=model, deps=sandbox)).output


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(asyncio.run(main(*sys.argv[1:])))
