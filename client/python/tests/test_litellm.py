"""The callback, in LiteLLM itself with a model that is not one."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nodes import PATIENCE, Answer, Fake, Node, allowed, as_answer, free_port

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched

import litellm
from fastapi import HTTPException
from litellm import CustomLLM, ModelResponse, Router

from rlnode import AsyncClient
from rlnode.litellm import MARK, RlnodeCallback

MESSAGES = [{"role": "user", "content": "Say something long, please."}]


class Model(CustomLLM):  # type: ignore[misc]
    """Answers with as many tokens as it was allowed, or fails."""

    asked = 0
    used = 0
    at_once = 0
    elsewhere = 0  # in another process
    most = 0
    tell: Callable[[], None] = staticmethod(lambda: None)  # that at_once has changed

    async def acompletion(self, *_: Any, **more: Any) -> Any:
        return await self.answer(more)

    async def astreaming(self, *_: Any, **more: Any) -> AsyncIterator[Any]:
        if "long" in more["model"]:
            Model.asked += 1
            for i in range(100):
                if i == 3 and "breaks" in more["model"]:
                    raise litellm.InternalServerError("it breaks", llm_provider="fake", model=more["model"])
                yield {"text": "word ", "is_finished": False, "finish_reason": "", "index": 0, "tool_use": None, "usage": None}
                if i >= 3:
                    await asyncio.sleep(60)
        await self.answer(more)
        for i in range(3):
            usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30} if i == 2 else None
            yield {"text": "word ", "is_finished": i == 2, "finish_reason": "stop" if i == 2 else "", "index": 0, "tool_use": None, "usage": usage}

    async def answer(self, more: Any) -> Any:
        Model.asked += 1
        Model.at_once += 1
        Model.most = max(Model.most, Model.at_once + Model.elsewhere)
        Model.tell()
        try:
            return await self.answer_alone(more)
        finally:
            Model.at_once -= 1

    async def answer_alone(self, more: Any) -> Any:
        await asyncio.sleep(60 if "slow" in more["model"] else 0.05 if "short" in more["model"] else 0)
        if "fail" in more["model"]:
            raise litellm.InternalServerError("it fails", llm_provider="fake", model=more["model"])
        completion = more["optional_params"].get("max_tokens", 50)
        Model.used += 10 + completion
        usage = {"prompt_tokens": 10, "completion_tokens": completion, "total_tokens": 10 + completion}
        return ModelResponse(
            model=more["model"],
            choices=[{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "words"}}],
            usage=litellm.Usage(**usage),
        )


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    Model.asked = Model.used = Model.at_once = Model.elsewhere = Model.most = 0
    litellm.custom_provider_map = [{"provider": "fake", "custom_handler": Model()}]
    litellm.utils.custom_llm_setup()
    litellm.num_retries = 0
    litellm.suppress_debug_info = True
    yield
    litellm.callbacks = []
    litellm.logging_callback_manager._reset_all_callbacks()


def run(callback: Callable[[], RlnodeCallback], main: Callable[[RlnodeCallback], Awaitable[None]]) -> None:
    """Runs main with a callback that LiteLLM uses."""

    async def all_of_it() -> None:
        made = callback()
        litellm.callbacks = [made]
        try:
            await main(made)
        finally:
            await made.close()

    asyncio.run(all_of_it())


async def until(ok: Callable[[], Awaitable[bool]], patience: float = PATIENCE) -> None:
    """Polls: LiteLLM logs behind the answer."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if await ok():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {patience} s")


def asked(times: int) -> Callable[[], Awaitable[bool]]:
    """Returns whether the model was asked that often."""

    async def enough() -> bool:
        return Model.asked >= times

    return enough


async def used(client: AsyncClient, namespace: str, key: str, limits: Any) -> int:
    return (await client.usage(key=key, namespace=namespace, limits=limits)).limits[0].used


def test_a_budget_is_never_exceeded(node: Node) -> None:
    """200 calls at once, of which each uses 10 + 40 tokens and is estimated at a few more, against a budget of 3,000."""
    limits: Any = [{"limit": 3000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex

    async def main(callback: RlnodeCallback) -> None:
        async def call() -> str:
            try:
                await litellm.acompletion(model="fake/m", messages=MESSAGES, max_tokens=40, user="u")
                return "ok"
            except litellm.RateLimitError as e:
                retry.append(int(e.response.headers["Retry-After"]))
                return "refused"

        retry: list[int] = []
        found = await asyncio.gather(*(call() for _ in range(200)))
        assert 0 < min(retry) <= max(retry) <= 86400
        passed = found.count("ok")
        assert 0 < passed == Model.asked < 200
        assert Model.used == passed * 50 <= 3000

        async def settled() -> bool:
            return not callback._open and await used(callback.client, namespace, "u", limits) == Model.used

        await until(settled)
        # What was estimated too high is there again, and what comes later uses it up to the last call.
        found = await asyncio.gather(*(call() for _ in range(200)))
        await until(settled)
        for _ in range(100):
            if await call() == "refused":
                break
            await until(settled)
        assert 2900 < Model.used <= 3000

    run(lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), limits=limits, namespace=namespace), main)


def test_streams_settle_at_their_end(node: Node) -> None:
    limits: Any = [{"limit": 3000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex

    async def main(callback: RlnodeCallback) -> None:
        stream = await litellm.acompletion(model="fake/m", messages=MESSAGES, max_tokens=100, user="s", stream=True)
        assert await used(callback.client, namespace, "s", limits) > 100
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "word word word "

        async def settled() -> bool:
            return 0 < await used(callback.client, namespace, "s", limits) < 100

        await until(settled)
        assert not callback._open

    run(lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), limits=limits, namespace=namespace), main)


def test_what_ends_early_is_settled_by_what_was_delivered(node: Node) -> None:
    """Streams that are closed or dropped, tasks cancelled in mid-stream, calls cancelled or timed out, a provider that fails."""
    limits: Any = [{"limit": 1_000_000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex

    async def main(callback: RlnodeCallback) -> None:
        async def ask(user: str, model: str = "fake/long") -> Any:
            return await litellm.acompletion(model=model, messages=MESSAGES, max_tokens=2000, user=user, stream="long" in model)

        async def read(stream: Any, chunks: int) -> None:
            for _ in range(chunks):
                await anext(stream)

        async def until_used(user: str, least: int, most: int) -> None:
            async def settled() -> bool:
                return not callback._open and least <= await used(callback.client, namespace, user, limits) <= most

            await until(settled)

        prompt = litellm.token_counter(model="fake/long", messages=MESSAGES)
        for _ in range(20):
            stream = await ask("closed")
            await read(stream, 3)
            await stream.aclose()
        await until_used("closed", 20 * (prompt + 3), 20 * (prompt + 8))

        stream = await ask("dropped")
        await read(stream, 3)
        del stream
        gc.collect()
        await until_used("dropped", prompt + 3, prompt + 8)

        async def reads_on() -> None:
            stream = await ask("cancelled")
            await read(stream, 5)

        tasks = [asyncio.create_task(reads_on()) for _ in range(5)]
        await until(asked(26))
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_used("cancelled", 5 * (prompt + 3), 5 * (prompt + 8))

        tasks = [asyncio.create_task(ask("calls", "fake/slow")) for _ in range(3)]
        await until(asked(29))
        assert await used(callback.client, namespace, "calls", limits) > 6000
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until_used("calls", 0, 0)

        try:
            await asyncio.wait_for(ask("late", "fake/slow"), 0.3)
            raise AssertionError("it did not time out")
        except asyncio.TimeoutError:
            pass
        gc.collect()
        await until_used("late", 0, 0)

        with pytest.raises(Exception, match="breaks"):
            await read(await ask("fails", "fake/long-breaks"), 9)
        await until_used("fails", prompt + 3, prompt + 8)
        with pytest.raises(litellm.InternalServerError):
            await ask("fails at once", "fake/fail")
        await until_used("fails at once", 0, 0)

    run(lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), limits=limits, namespace=namespace), main)


def test_cached_tokens_need_not_count(node: Node) -> None:
    limits: Any = [{"limit": 3000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex

    async def main(callback: RlnodeCallback) -> None:
        await litellm.acompletion(model="fake/m", messages=MESSAGES, max_tokens=40, user="c")

        async def settled() -> bool:
            return not callback._open and await used(callback.client, namespace, "c", limits) == 43

        await until(settled)

    run(
        lambda: RlnodeCallback(
            client=AsyncClient(node.url, on_error="closed", timeout=30),
            limits=limits,
            namespace=namespace,
            used=lambda usage: usage.total_tokens - 7,
            on_expiry="refund",
        ),
        main,
    )


def test_failures_give_back(node: Node) -> None:
    limits: Any = [{"limit": 3000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex

    async def main(callback: RlnodeCallback) -> None:
        for _ in range(3):
            with pytest.raises(litellm.InternalServerError):
                await litellm.acompletion(model="fake/fail", messages=MESSAGES, max_tokens=2900, user="f")

            async def given_back() -> bool:
                return await used(callback.client, namespace, "f", limits) == 0

            await until(given_back)
        assert Model.asked == 3
        assert not callback._open

    run(lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), limits=limits, namespace=namespace), main)


def test_router(node: Node) -> None:
    """Of a call that is tried again only what was used stays charged."""
    limits: Any = [{"limit": 300, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex
    models = [{"model_name": name, "litellm_params": {"model": f"fake/{name}"}} for name in ("fail", "good")]

    async def main(callback: RlnodeCallback) -> None:
        router = Router(model_list=models, fallbacks=[{"fail": ["good"]}], num_retries=0, disable_cooldowns=True)
        answer = await router.acompletion(model="fail", messages=MESSAGES, max_tokens=150, user="r")
        assert answer.usage.total_tokens == 160

        async def settled() -> bool:
            return await used(callback.client, namespace, "r", limits) == 160

        await until(settled)
        assert Model.asked == 2
        with pytest.raises(litellm.RateLimitError):
            await router.acompletion(model="good", messages=MESSAGES, max_tokens=200, user="r")

    run(lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), limits=limits, namespace=namespace), main)


def test_proxy(node: Node) -> None:
    """The proxy's order of things: its hook, LiteLLM's own, several tries, its last word."""

    async def main(callback: RlnodeCallback) -> None:
        async def used_by(key: str) -> dict[str, int]:
            return {one.unit: one.used for one in (await callback.client.usage("llm", key)).limits}

        async def call(model: str, metadata: Any = None) -> Any:
            who = SimpleNamespace(api_key="hash", user_id=name, team_id=None, end_user_id=None)
            data: dict[str, Any] = {
                "model": model,
                "messages": MESSAGES,
                "max_tokens": 500,
                "metadata": metadata,
                "proxy_server_request": {"url": "/"},
            }
            data = await callback.async_pre_call_hook(who, None, data, "completion")
            told.append(await callback.async_post_call_response_headers_hook(data=data, user_api_key_dict=who, response=None))
            for last in (False, True):
                try:
                    return await litellm.acompletion(**data)
                except litellm.InternalServerError as e:
                    if last:
                        await callback.async_post_call_failure_hook(data, e, who)
                        raise

        told: list[Any] = []
        name = uuid.uuid4().hex
        await call("fake/m")

        async def settled() -> bool:
            return await used_by(name) == {"requests": 1, "tokens": 510}

        await until(settled)
        assert told[0]["RateLimit-Policy"] == '"llm/tokens/1h";q=1000;qu="tokens";w=3600, "llm/requests/1h";q=100;w=3600'
        with pytest.raises(HTTPException) as caught:
            await call("fake/m", {MARK: "made up"})
        assert caught.value.status_code == 429
        assert caught.value.headers is not None
        assert 0 < int(caught.value.headers["retry-after"]) <= 3600
        name = uuid.uuid4().hex
        asked = Model.asked
        with pytest.raises(litellm.InternalServerError):
            await call("fake/fail")
        assert Model.asked == asked + 2
        assert await used_by(name) == {"requests": 0, "tokens": 0}
        assert not callback._open

    run(
        lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), rule="llm", attributes=lambda who: {"user": who["user"]}),
        main,
    )


def test_no_node(fake: Callable[..., Fake]) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"

    async def passes(callback: RlnodeCallback) -> None:
        assert (await litellm.acompletion(model="fake/m", messages=MESSAGES)).choices

    async def refuses(callback: RlnodeCallback) -> None:
        with pytest.raises(litellm.RateLimitError):
            await litellm.acompletion(model="fake/m", messages=MESSAGES)
        assert Model.asked == 1

    run(lambda: RlnodeCallback(nodes=[nobody]), passes)
    run(lambda: RlnodeCallback(nodes=[nobody], on_error="closed"), refuses)
    stranger = fake(lambda path, body: as_answer(401, {"status": 401, "code": "unauthorized", "title": "x", "detail": "x"}))
    run(lambda: RlnodeCallback(nodes=[stranger.url]), refuses)


def test_what_is_sent(fake: Callable[..., Fake]) -> None:
    node = fake(lambda path, body: as_answer(200, allowed(reservation="abc", settled=True, costs={}, remaining=1)))

    async def main(callback: RlnodeCallback) -> None:
        await litellm.acompletion(model="fake/m", messages=MESSAGES, n=2, max_tokens=7, user="u")

        async def settled() -> bool:
            return len(node.requests) == 2

        await until(settled)

    run(lambda: RlnodeCallback(nodes=[node.url], estimate=lambda data: data["max_tokens"] * 3, ttl=5), main)
    run(lambda: RlnodeCallback(nodes=[node.url], rule="r", key=lambda who: [who["user"], who["model"]], unit="t"), lambda callback: _none())
    reserved, settled = (body for _, _, body in node.requests)
    assert reserved.pop("request_id")
    assert reserved == {"attributes": {"user": "u", "model": "fake/m"}, "costs": {"tokens": 21}, "ttl_ms": 5000}
    assert settled == {"reservation": "abc", "costs": {"tokens": 17}}


async def _none() -> None:
    pass


def reserves(path: str, body: Any) -> Answer:
    """Answers as a node that allows all."""
    return as_answer(200, allowed(reservation="abc", settled=True, costs={}, remaining=1))


def test_a_call_within_a_call_of_the_proxy(fake: Callable[..., Fake]) -> None:
    """LiteLLM translates one API into another by a call that has nothing of the first one's metadata."""
    node = fake(reserves)

    async def main(callback: RlnodeCallback) -> None:
        who = SimpleNamespace(api_key="hash", user_id="u", team_id=None, end_user_id=None)
        await callback.async_pre_call_hook(who, None, {"model": "fake/m", "messages": MESSAGES, "litellm_metadata": {}}, "anthropic_messages")
        await litellm.acompletion(model="fake/m", messages=MESSAGES, max_tokens=7)

        async def settled() -> bool:
            return not callback._open and len(node.requests) == 2

        await until(settled)
        assert [path for path, _, _ in node.requests] == ["/v1/reserve", "/v1/settle"]
        assert node.requests[1][2]["costs"] == {"tokens": 17}

    run(lambda: RlnodeCallback(nodes=[node.url]), main)


@pytest.mark.parametrize(
    ("data", "events", "used"),
    [
        ({"messages": MESSAGES}, [b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "word "}}\n\n'], 13 + 4),
        ({"input": "Say something long, please."}, [{"type": "response.output_text.delta", "delta": "word "}], 6 + 4),
        ({"messages": MESSAGES}, [b"data: {}\n\n"], None),
    ],
    ids=["messages", "responses", "unknown"],
)
def test_other_streams_of_the_proxy_are_settled_by_what_passed(
    fake: Callable[..., Fake], data: dict[str, Any], events: list[Any], used: int | None
) -> None:
    node = fake(reserves)

    async def stream() -> AsyncIterator[Any]:
        for _ in range(3):
            for event in events:
                yield event
        await asyncio.sleep(60)

    async def main(callback: RlnodeCallback) -> None:
        who = SimpleNamespace(api_key="hash", user_id="u", team_id=None, end_user_id=None)
        asked = await callback.async_pre_call_hook(who, None, {"model": "gpt-4o", "stream": True, **data}, "aresponses")
        passed = callback.async_post_call_streaming_iterator_hook(who, stream(), asked)
        for _ in range(3):
            await anext(passed)
        await passed.aclose()  # type: ignore[attr-defined]

        async def settled() -> bool:
            return not callback._open and not callback._tasks

        await until(settled)
        assert [body["costs"] for path, _, body in node.requests if path == "/v1/settle"] == ([{"tokens": used}] if used else [])

    run(lambda: RlnodeCallback(nodes=[node.url]), main)


def test_a_stream_of_responses(node: Node, fake: Callable[..., Fake]) -> None:
    """It is settled by what it delivered when it is dropped, and metadata goes to no provider."""
    delta = {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "m", "output_index": 0, "content_index": 0, "delta": "word "}
    events = f"data: {json.dumps(delta)}\n\n" * 9
    model = fake(lambda path, body: (200, {"Content-Type": "text/event-stream"}, events.encode()))
    limits: Any = [{"limit": 1_000_000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
    namespace = uuid.uuid4().hex

    async def main(callback: RlnodeCallback) -> None:
        stream = await litellm.aresponses(
            model="openai/gpt-4o", api_base=model.url, api_key="k", input="Say something long, please.", user="r", stream=True, max_output_tokens=2000
        )
        for _ in range(3):
            await anext(stream)
        assert await used(callback.client, namespace, "r", limits) > 2000
        del stream
        gc.collect()

        async def settled() -> bool:
            return not callback._open and await used(callback.client, namespace, "r", limits) == 6 + 4

        await until(settled)
        assert "metadata" not in model.requests[0][2]

    run(lambda: RlnodeCallback(client=AsyncClient(node.url, on_error="closed", timeout=30), limits=limits, namespace=namespace), main)


PARALLEL: Any = [
    {"limit": 20, "ttl": "3s", "algorithm": "concurrency"},
    {"limit": 1_000_000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"},
]


def parallel(url: str, namespace: str) -> RlnodeCallback:
    client = AsyncClient(url, on_error="closed", timeout=30)
    return RlnodeCallback(client=client, limits=PARALLEL, namespace=namespace, ttl=PATIENCE, on_expiry="refund")


async def until_allowed(model: str) -> Any:
    """Makes a call as soon as a slot is free."""
    while True:
        try:
            return await litellm.acompletion(model=model, messages=MESSAGES, max_tokens=40, user="p")
        except litellm.RateLimitError:
            await asyncio.sleep(0.5)


def work(url: str, namespace: str) -> None:
    """Is the process that is killed: its calls never end. They begin when it is told to, and it says how many there are."""
    litellm.custom_provider_map = [{"provider": "fake", "custom_handler": Model()}]
    litellm.utils.custom_llm_setup()

    Model.tell = lambda: print(Model.at_once, flush=True)

    async def main() -> None:
        litellm.callbacks = [parallel(url, namespace)]
        await asyncio.gather(*(until_allowed("fake/slow") for _ in range(20)))

    print(0, flush=True)
    sys.stdin.readline()
    asyncio.run(main())


def test_parallel_calls_hold_slots(node: Node) -> None:
    """200 calls at once for 20 slots, of which a tenth is cancelled, and a tenth is killed with its process."""
    namespace = uuid.uuid4().hex
    code = f"import test_litellm; test_litellm.work({node.url!r}, {namespace!r})"
    path = os.pathsep.join(sys.path)
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert other.stdin is not None
    assert other.stdout is not None

    def read(lines: Any) -> None:
        for line in lines:
            Model.elsewhere = int(line)
            Model.most = max(Model.most, Model.at_once + Model.elsewhere)
        Model.elsewhere = 0

    assert other.stdout.readline() == "0\n"  # it is ready
    reader = threading.Thread(target=read, args=(other.stdout,))
    reader.start()

    async def half_each() -> bool:
        return Model.at_once == 10 == Model.elsewhere

    async def half_here() -> bool:
        return Model.at_once == 10

    async def main(callback: RlnodeCallback) -> None:
        # Half of those that are cancelled, and of those that are killed, run; the others wait.
        cancelled = [asyncio.create_task(until_allowed("fake/slow")) for _ in range(10)]
        await until(half_here)
        print("begin", file=other.stdin, flush=True)
        await until(half_each)
        cancelled += [asyncio.create_task(until_allowed("fake/slow")) for _ in range(10)]
        calls = [asyncio.create_task(until_allowed("fake/short")) for _ in range(160)]
        await asyncio.sleep(0.3)
        for task in cancelled:
            task.cancel()
        await asyncio.gather(*cancelled, return_exceptions=True)
        other.kill()
        other.wait()
        answers = await asyncio.gather(*calls)
        assert len(answers) == 160
        assert Model.most <= 20

        async def settled() -> bool:
            usage = await callback.client.usage(key="p", namespace=namespace, limits=PARALLEL)
            return not callback._open and [one.used for one in usage.limits] == [0, 160 * 50]

        await until(settled, 2 * PATIENCE)  # the dead process's slots have ended, and its reservations
        Model.most = 0
        calls = [asyncio.create_task(until_allowed("fake/slow")) for _ in range(30)]

        async def all_in_use() -> bool:
            return Model.at_once == 20

        await until(all_in_use)
        await asyncio.sleep(4)  # beyond the ttl
        assert Model.at_once == Model.most == 20
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    try:
        run(lambda: parallel(node.url, namespace), main)
    finally:
        other.kill()
        other.wait()
        reader.join()
