"""The examples for agent libraries work, with models that say what a test wants."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sandboxd import Gateway

EXAMPLES = Path(__file__).parents[4] / "../docs/examples"
LIBRARIES = {
    "langchain_shell": "langchain",
    "openai_agents_shell": "agents",
    "pydantic_ai_shell": "pydantic_ai",
}
# A command that asks, its answer, and one that is wrong.
CALLS: list[tuple[str, dict[str, str]]] = [
    ("run", {"command": "read -p 'your name? ' name && echo hello $name; sleep 0.1"}),
    ("run", {"command": "true"}),
    ("answer", {"text": "Ada"}),
    ("wait", {}),
    ("run", {"command": "if"}),
    ("run", {"command": "exit_code() { return 3; }; exit_code"}),
]


def load(name: str) -> ModuleType:
    pytest.importorskip(LIBRARIES[name])
    found = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def check(answers: list[Any], said: str) -> None:
    """Checks what the tools have answered to the calls."""
    known = [a if isinstance(a, dict) else a if a.startswith("error") else json.loads(a)
             for a in answers]  # fmt: skip
    assert (known[0]["ended"], known[0]["asks"]) == ("waiting", "your name? ")
    assert "error" in str(known[1]) and "waits for input" in str(known[1])
    assert (known[2]["ended"], known[2]["output"].splitlines()[-1]) == ("done", "hello Ada")
    assert known[3]["ended"] in ("done", "returned")
    assert "error" in str(known[4])
    assert known[5]["exit_code"] == 3
    assert said == "all done"
    with Gateway() as gateway:
        assert not [s for s in gateway.sandboxes() if s.name != "shared"]


def test_langchain(state: Path) -> None:
    example = load("langchain_shell")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolMessage

    seen: list[Any] = []

    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            assert [t.name for t in tools] == ["run", "answer", "wait"]
            return self

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            seen[:] = [m.content for m in messages if isinstance(m, ToolMessage)]
            return super()._generate(messages, *args, **kwargs)

    script = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": str(i)}])
        for i, (name, args) in enumerate(CALLS)
    ]
    said = example.main(Scripted(messages=iter([*script, AIMessage("all done")])), "work")
    check(seen, said)


def test_openai_agents(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    example = load("openai_agents_shell")
    from agents import Model, ModelResponse, Usage
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    seen: list[Any] = []

    class Scripted(Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            input = kwargs["input"]
            outputs = [i["output"] for i in input if i.get("type") == "function_call_output"]
            seen[:] = outputs
            at = len(outputs)
            item: Any
            if at < len(CALLS):
                name, arguments = CALLS[at]
                item = ResponseFunctionToolCall(
                    arguments=json.dumps(arguments), call_id=f"c{at}", name=name,
                    type="function_call",
                )  # fmt: skip
            else:
                text = ResponseOutputText(annotations=[], text="all done", type="output_text")
                item = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    said = asyncio.run(example.main(Scripted(), [{"role": "user", "content": "work"}]))
    check(seen, said)


def test_pydantic_ai(state: Path) -> None:
    example = load("pydantic_ai_shell")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    seen: list[Any] = []

    def scripted(messages: Any, info: Any) -> ModelResponse:
        returns = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        seen[:] = [p.content for p in returns]
        if len(seen) == len(CALLS):
            return ModelResponse(parts=[TextPart("all done")])
        return ModelResponse(parts=[ToolCallPart(*CALLS[len(seen)])])

    said = asyncio.run(example.main(FunctionModel(scripted), "work"))
    check(seen, said)


@pytest.mark.parametrize("name", LIBRARIES)
def test_usage(name: str) -> None:
    pytest.importorskip(LIBRARIES[name])
    program = EXAMPLES / f"{name}.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 1 and f"{name}.py MODEL TASK" in done.stderr
