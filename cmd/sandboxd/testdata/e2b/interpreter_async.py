"""E2B's code interpreter SDK for Python, asynchronous: what it shares with the other is not played again."""

import asyncio
import os
import sys

from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import AsyncSandbox


async def refused(what, exception, awaitable):
    try:
        await awaitable
    except exception as e:
        return e
    raise AssertionError(f"{what} was not refused")


async def main():
    s = await AsyncSandbox.create(timeout=120)
    try:
        seen = []

        async def out(m):
            seen.append(m.line)

        x = await s.run_code("z = 5\nprint('hi')\nz", on_stdout=out)
        assert x.text == "5" and seen == ["hi\n"] == x.logs.stdout, x
        c = await s.create_code_context(cwd="/tmp")
        both = await asyncio.gather(s.run_code("import time; time.sleep(0.5); z"), s.run_code("import os; os.getcwd()", context=c))
        assert [x.text for x in both] == ["5", "/tmp"], both
        assert c.id in [x.id for x in await s.list_code_contexts()]
        await s.restart_code_context(c)
        await s.remove_code_context(c)
        await refused("a context that is gone", NotFoundException, s.run_code("1", context=c))
        await refused("code that lasts", TimeoutException, s.run_code("while True: pass", timeout=0.5))
        x = await s.run_code("1/0")
        assert x.error.name == "ZeroDivisionError", x
    finally:
        await s.kill()


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
    # Threads of the SDK's HTTP client abort a Python before 3.14 that ends normally (curioswitch/pyqwest#164): not what is tested here.
    os._exit(0)
