"""A callback for LiteLLM: a call's tokens are reserved before it, and settled after it.

For the proxy, in a module beside its configuration, which then says ``callbacks: ["my_module.limiter"]``:

>>> limiter = RlnodeCallback(nodes=["http://127.0.0.1:8080"], rule="llm")

For the SDK: ``litellm.callbacks = [limiter]``. Asynchronous calls are limited (``acompletion``, ``aembedding`` and so on);
LiteLLM asks nobody before a synchronous one.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

import litellm
from litellm.integrations.custom_logger import CustomLogger

from ._aio import AsyncClient
from ._answers import NEVER, Reservation
from ._options import OnError
from ._requests import Key, Limit
from ._setup import LOGGER
from ._web import own_limits
from .errors import RlnodeError

MAX_OPEN = 100_000  # calls under way
MARK = "rlnode_call"  # in a call's metadata: which reservation is its

Who = Mapping[str, str]


class _Arguments(dict[str, Any]):
    """The arguments of a call. LiteLLM's function holds them until it returns or is cancelled: a dict says so when it goes."""

    __slots__ = ("__weakref__",)


class _Open:
    """A call under way."""

    def __init__(self, reserved: Reservation, data: Mapping[str, Any], unwatched: bool) -> None:
        self.reserved = reserved
        self.data = data  # what was asked
        self.unwatched = unwatched  # it streams, and nothing says when its stream begins
        self.loop = asyncio.get_running_loop()
        self.forget: Callable[[], None] = lambda: None  # no longer watches the caller's task
        self.timer: asyncio.TimerHandle | None = None  # when nobody could settle it any more
        self.answered = False  # LiteLLM is about to log it
        self.finished = False  # so is its stream
        self.chunks: list[list[Any]] = []  # of its streams: a router has one around another

    def delivered(self) -> int | None:
        """Returns the tokens of a stream up to here, with the prompt's; 0 if nothing came, None if they can't be counted."""
        chunks = max(self.chunks, key=len, default=[])
        if not chunks:
            return 0
        try:
            if not hasattr(chunks[0], "choices"):
                text = "".join(map(_text_of, chunks))
                return _prompt_tokens(self.data) + litellm.token_counter(model=self.data.get("model", ""), text=text) if text else None
            messages = self.data.get("messages")
            usage = getattr(litellm.stream_chunk_builder(chunks=list(chunks), messages=messages), "usage", None)
            return int(getattr(usage, "total_tokens", 0) or 0) + (0 if messages else _prompt_tokens(self.data))
        except Exception as e:  # chunks of any provider
            LOGGER.info("the tokens of a stream that was closed can't be counted: %s", e)
            return None


def _text_of(chunk: Any) -> str:
    """Returns the text that an event of a stream brings: of OpenAI's responses, or of Anthropic's messages."""
    if isinstance(chunk, (bytes, str)):
        lines = (chunk.decode(errors="replace") if isinstance(chunk, bytes) else chunk).splitlines()
        events = [line.removeprefix("data:") for line in lines if line.startswith("data:") and '"delta"' in line]
        return "".join(_text_of(json.loads(event)) for event in events)
    delta = chunk.get("delta") if isinstance(chunk, dict) else getattr(chunk, "delta", None)
    if isinstance(delta, dict):
        return "".join(str(delta.get(name) or "") for name in ("text", "thinking", "partial_json"))
    return delta if isinstance(delta, str) else ""


def _name_of(call_type: Any) -> str:
    return str(getattr(call_type, "value", call_type))


def _prompt_tokens(data: Mapping[str, Any]) -> int:
    asked = data.get("prompt") or data.get("input") or ""
    try:
        if data.get("messages"):
            return int(litellm.token_counter(model=data.get("model", ""), messages=data["messages"], tools=data.get("tools")))
        return int(litellm.token_counter(model=data.get("model", ""), text=asked if isinstance(asked, str) else str(asked)))
    except Exception as e:  # what strangers send
        LOGGER.info("a prompt's tokens can't be counted: %s", e)
        return len(str(data.get("messages") or asked))


CALLBACKS: weakref.WeakSet[RlnodeCallback] = weakref.WeakSet()

# The call of the proxy that is served here. A call within it, in which LiteLLM translates one API into another, has no mark.
SERVED: ContextVar[str] = ContextVar("rlnode_served", default="")


def _watch_streams() -> None:
    """Has LiteLLM's streams say when they begin and end: it tells no callback that one was closed or cancelled."""
    from litellm.litellm_core_utils.streaming_handler import CustomStreamWrapper
    from litellm.responses.streaming_iterator import ResponsesAPIStreamingIterator

    for kind in (CustomStreamWrapper, ResponsesAPIStreamingIterator):
        if not getattr(kind, "rlnode_watches", False):
            _watch(kind)
            kind.rlnode_watches = True


def _watch(kind: Any) -> None:
    begin, go_on = kind.__init__, kind.__anext__
    close: Any = getattr(kind, "aclose", None)

    def call_of(stream: Any) -> tuple[RlnodeCallback, str] | None:
        details = getattr(getattr(stream, "logging_obj", None), "model_call_details", None) or {}
        for callback in list(CALLBACKS):
            mark = callback._mark_of(details.get("litellm_params") or {})
            if mark is not None:
                return callback, mark
        return None

    def __init__(self: Any, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        call = call_of(self)
        if call is not None:
            self.rlnode_chunks = getattr(self, "chunks", None)
            if self.rlnode_chunks is None:  # it does not keep them
                self.rlnode_chunks = []
            call[0]._begin_stream(call[1], self, self.rlnode_chunks)

    async def __anext__(self: Any) -> Any:
        try:
            chunk = await go_on(self)
        except StopAsyncIteration:
            call = call_of(self)
            if call is not None:
                call[0]._open[call[1]].finished = True
            raise
        except BaseException as e:
            call = call_of(self)
            in_router = "model_group" in (((self.logging_obj.model_call_details.get("litellm_params") or {}).get("metadata")) or {})
            if call is not None and not (in_router and isinstance(e, Exception)):  # a router may try another model
                call[0]._end_stream(call[1])
            raise
        if close is None and hasattr(self, "rlnode_chunks"):
            self.rlnode_chunks.append(chunk)
        return chunk

    async def aclose(self: Any) -> None:
        try:
            await close(self)
        finally:
            call = call_of(self)
            if call is not None:
                call[0]._end_stream(call[1])

    kind.__init__, kind.__anext__ = __init__, __anext__
    if close is not None:
        kind.aclose = aclose


class RlnodeCallback(CustomLogger):  # type: ignore[misc]
    """Limits what LiteLLM's callers use.

    Each call reserves an estimate of its tokens, so calls that run at the same time can't exceed a budget together. What was
    really used is settled when LiteLLM logs the call; a call that fails or is cancelled gives its estimate back. A stream that
    is closed, cancelled or dropped early, or fails, is settled by what was delivered. If the process ends before that,
    on_expiry says what becomes of the estimate.

    Where rules or limits have slots (``algorithm: concurrency``), a call holds one until it is settled, so that only so many run
    at the same time. If the process ends, its slots end after their ttl.

    Args:
        client: An AsyncClient; or else nodes, token and on_error, of which one is made.
        nodes: See Client.
        token: See Client.
        on_error: See Client.
        rule: Only this rule is asked.
        key: Returns the subject, of who asks; for rule or limits.
        attributes: Returns the attributes that rules match by. If left out, they are who asks: of the proxy's api_key (as a
            hash), user, team and end_user, and model; of the SDK's calls user and model.
        limits: Limits in place of the server's rules, such as ``[{"limit": 90000, "per": "1m", "unit": "tokens"}]``.
        namespace: Of the subjects of limits.
        unit: What tokens are called in limits.
        ttl: Seconds within which a call has to end for its use to be settled. Its slot is held no longer, either.
        estimate: Returns the tokens that a call may use. If left out: those of the prompt, by LiteLLM's own counter, and
            max_tokens, or default_max_tokens where a call does not say.
        used: Returns the tokens that count of what a call has used: of LiteLLM's usage, which has those of the prompt that the
            provider had cached in prompt_tokens_details. If left out: all of them.
        on_expiry: What becomes of an estimate that is not settled within ttl: "charge", "refund", or the costs that stay charged.
        default_max_tokens: See estimate.
    """

    def __init__(
        self,
        *,
        client: AsyncClient | None = None,
        nodes: Sequence[str] | str = (),
        token: str | None = None,
        on_error: OnError = "open",
        rule: str | None = None,
        key: Callable[[Who], Key] | None = None,
        attributes: Callable[[Who], Mapping[str, str]] | None = None,
        limits: Sequence[Limit] | None = None,
        namespace: str | None = None,
        unit: str = "tokens",
        ttl: float = 600.0,
        estimate: Callable[[Mapping[str, Any]], int] | None = None,
        used: Callable[[Any], int] | None = None,
        on_expiry: str | Mapping[str, int] | None = None,
        default_max_tokens: int = 1024,
    ) -> None:
        super().__init__()
        if limits is not None and rule is not None:
            raise ValueError("limits exclude rule")
        self.client = client or AsyncClient(nodes, token=token, on_error=on_error, local_limits=own_limits(on_error, limits))
        self.rule, self.key, self.attributes, self.limits, self.namespace = rule, key, attributes, limits, namespace
        self.unit, self.ttl, self.default_max_tokens = unit, ttl, default_max_tokens
        self.estimate = estimate
        self.used, self.on_expiry = used, on_expiry
        self._open: OrderedDict[str, _Open] = OrderedDict()  # by mark, at most MAX_OPEN
        self._tasks: set[asyncio.Task[None]] = set()
        CALLBACKS.add(self)
        _watch_streams()

    async def close(self) -> None:
        """Settles what has ended, and closes the client."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)
        await self.client.close()

    # Before a call

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """Reserves for a call of the proxy, or refuses it."""
        who = {
            "api_key": getattr(user_api_key_dict, "api_key", None),
            "user": getattr(user_api_key_dict, "user_id", None),
            "team": getattr(user_api_key_dict, "team_id", None),
            "end_user": getattr(user_api_key_dict, "end_user_id", None),
            "model": data.get("model"),
        }
        reserved = await self._reserve(data, who, call_type)
        if not reserved.allowed:
            from fastapi import HTTPException

            status = 403 if reserved.denied else 503 if reserved.decided_by == "error" and not reserved.limit else 429
            headers = {name.lower(): value for name, value in reserved.headers.items()}
            raise HTTPException(status, {"error": {"message": reserved.reason, "type": "rate_limit_error"}}, headers)
        SERVED.set(self._mark(data, reserved))
        return data

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Reserves for a call of the SDK, or refuses it. One of the proxy has its reservation already."""
        if self._mark_of(kwargs) is not None:
            return None
        reserved = await self._reserve(kwargs, {"user": kwargs.get("user"), "model": kwargs.get("model")}, call_type)
        if not reserved.allowed:
            response = None
            if 0 < reserved.retry_after < NEVER:
                import httpx

                asked = httpx.Request("POST", "https://litellm.ai")
                response = httpx.Response(429, headers=dict(reserved.headers), request=asked)
            raise litellm.RateLimitError(reserved.reason, llm_provider="rlnode", model=str(kwargs.get("model", "")), response=response)
        mark = self._mark(kwargs, reserved, _name_of(call_type))
        held = _Arguments(kwargs)
        weakref.finalize(held, self._on_loop, mark, self._check_ended).atexit = False
        return held

    async def _reserve(self, data: Mapping[str, Any], who: Mapping[str, Any], call_type: Any) -> Reservation:
        known = {name: str(value) for name, value in who.items() if value}
        estimate = self.estimate(data) if self.estimate is not None else self._estimate(data, _name_of(call_type))
        costs = {self.unit: max(0, int(estimate))}
        more: dict[str, Any] = {"costs": costs, "ttl": self.ttl, "headers": True, "request_id": uuid4().hex}
        if self.on_expiry is not None:
            more["on_expiry"] = self.on_expiry
        try:
            if self.limits is not None:
                key = self.key(known) if self.key is not None else known.get("api_key") or known.get("user") or "all"
                if self.namespace:
                    more["namespace"] = self.namespace
                return await self.client.reserve(key=key, limits=self.limits, **more)
            if self.key is not None:
                return await self.client.reserve(self.rule, self.key(known), **more)
            return await self.client.reserve(self.rule, attributes=self.attributes(known) if self.attributes is not None else known, **more)
        except RlnodeError as e:
            LOGGER.error("a call is refused, since its check can't be decided: %s", e)
            return Reservation(allowed=False, decided_by="error", reason="The rate limiter can't decide this.", error=e)

    def _estimate(self, data: Mapping[str, Any], call_type: str) -> int:
        prompt = _prompt_tokens(data)
        if data.get("input") is not None and "responses" not in call_type:
            return prompt  # an embedding gives no tokens
        most = data.get("max_completion_tokens") or data.get("max_tokens") or data.get("max_output_tokens") or self.default_max_tokens
        return prompt + _whole(most, self.default_max_tokens) * max(1, _whole(data.get("n"), 1))

    def _mark(self, data: dict[str, Any], reserved: Reservation, call_type: str = "acompletion") -> str:
        mark = uuid4().hex
        # Of some calls LiteLLM sends metadata to the provider.
        own = "litellm_metadata" if "litellm_metadata" in data or call_type in ("aresponses", "anthropic_messages") else "metadata"
        data[own] = {**(data.get(own) or {}), MARK: mark}
        unwatched = bool(data.get("stream")) and call_type not in ("acompletion", "atext_completion", "aresponses")
        call = self._open[mark] = _Open(reserved, data, unwatched)
        call.timer = call.loop.call_later(self.ttl, self._settle_soon, mark, None)
        if len(self._open) > MAX_OPEN:
            self._settle_soon(next(iter(self._open)), None)
        task = asyncio.current_task()
        if task is not None:

            def ended(task: asyncio.Task[Any]) -> None:
                if task.cancelled() or not data.get("stream"):
                    self._on_loop(mark, self._check_ended if not task.cancelled() else self._end_stream)

            task.add_done_callback(ended)
            call.forget = lambda: (task.remove_done_callback(ended), None)[1]
        return mark

    def _mark_of(self, data: Mapping[str, Any]) -> str | None:
        """Returns the mark of a call. One that a stranger made up is none."""
        for name in ("metadata", "litellm_metadata"):
            mark = (data.get(name) or {}).get(MARK)
            if isinstance(mark, str) and mark in self._open:
                return mark
        served = SERVED.get()
        return served if served in self._open else None

    # After a call

    def _on_loop(self, mark: str, do: Callable[[str], None]) -> None:
        """Does something about a call that is still under way, from wherever."""
        call = self._open.get(mark)
        if call is not None and not call.loop.is_closed():
            call.loop.call_soon_threadsafe(do, mark)

    def _check_ended(self, mark: str) -> None:
        """Releases a call whose function has ended, unless it has answered or streams: it failed or was cancelled."""
        call = self._open.get(mark)
        if call is not None and not call.answered and not call.chunks and not call.unwatched:
            self._end_stream(mark)

    def _begin_stream(self, mark: str, stream: Any, chunks: list[Any]) -> None:
        self._open[mark].chunks.append(chunks)
        weakref.finalize(stream, self._on_loop, mark, self._end_stream).atexit = False

    def _end_stream(self, mark: str) -> None:
        """Settles a call that has ended by what it has delivered, unless LiteLLM is about to log it."""
        call = self._open.get(mark)
        if call is not None and not call.finished and not call.answered:
            self._settle_by_stream(mark)

    def _settle_by_stream(self, mark: str) -> None:
        call = self._open.get(mark)
        if call is not None:
            self._settle_soon(mark, self._costs(call.delivered()))

    def _settle_soon(self, mark: str, costs: Mapping[str, int] | None) -> None:
        call = self._open.get(mark)
        if call is None:
            return
        settling: Coroutine[Any, Any, None] = self._settle(mark, costs)
        task = call.loop.create_task(settling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def async_post_call_success_deployment_hook(self, request_data: dict[str, Any], response: Any, call_type: Any) -> Any:
        """Notes that a call has answered: LiteLLM logs it next."""
        mark = self._mark_of(request_data)
        if mark is not None:
            self._open[mark].answered = True
        return response

    async def async_post_call_streaming_iterator_hook(
        self, user_api_key_dict: Any, response: Any, request_data: dict[str, Any]
    ) -> AsyncIterator[Any]:
        """Passes on a stream of the proxy, and settles it if its caller hangs up."""
        mark = self._mark_of(request_data)
        call = self._open.get(mark or "")
        seen: list[Any] = []
        if call is not None and not call.chunks:
            call.chunks.append(seen)
        try:
            async for chunk in response:
                if call is not None and call.chunks[0] is seen:
                    seen.append(chunk)
                yield chunk
        except (GeneratorExit, asyncio.CancelledError):
            if mark is not None:
                self._end_stream(mark)
            raise
        if call is not None and mark is not None:  # LiteLLM does not log each one that it has translated
            call.loop.call_later(1, self._settle_by_stream, mark)

    async def async_log_success_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Settles what a call has used; of a stream this is its end."""
        mark = self._mark_of(kwargs.get("litellm_params") or {})
        if mark is None:
            return
        used = self._used(kwargs, response_obj)
        await self._settle(mark, None if used is None else {self.unit: used})

    async def async_log_failure_event(self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Settles a call of the SDK that failed. The proxy may try one again, and says itself when it gives up."""
        params = kwargs.get("litellm_params") or {}
        mark = self._mark_of(params)
        if mark is None or params.get("proxy_server_request"):
            return
        await self._settle(mark, self._costs(self._used(kwargs, response_obj) or self._open[mark].delivered()))

    async def async_post_call_failure_hook(
        self, request_data: dict[str, Any], original_exception: Exception, user_api_key_dict: Any, traceback_str: str | None = None
    ) -> None:
        """Gives back what a call of the proxy reserved that failed."""
        mark = self._mark_of(request_data)
        if mark is not None:
            await self._settle(mark, self._costs(self._open[mark].delivered()))

    async def async_post_call_response_headers_hook(self, data: dict[str, Any], *_: Any, **__: Any) -> dict[str, str] | None:
        """Returns the rate headers of a call of the proxy."""
        mark = self._mark_of(data)
        return dict(self._open[mark].reserved.headers) if mark is not None else None

    def _costs(self, used: int | None) -> dict[str, int] | None:
        """Returns what a call that ended early is settled by: none if it has used nothing, which gives its request back, too."""
        if used is None:
            return None
        return {self.unit: used} if used else {}

    async def _settle(self, mark: str, costs: Mapping[str, int] | None) -> None:
        """Settles a call. Where what it has used is not known, it stays as reserved, and only its slot is released."""
        call = self._open.pop(mark, None)
        if call is None:
            return
        call.forget()
        if call.timer is not None and call.loop is asyncio.get_running_loop():
            call.timer.cancel()
        sending = self._send(call.reserved.id, costs)
        if call.loop is asyncio.get_running_loop():
            await sending
        else:  # of a thread for which the client's loop may wait
            asyncio.run_coroutine_threadsafe(sending, call.loop)

    async def _send(self, reservation: str, costs: Mapping[str, int] | None) -> None:
        try:
            if costs is None:
                await self.client._attach().release_reserved(reservation)
            else:
                await self.client.settle(reservation, costs)
        except RlnodeError as e:
            LOGGER.warning("a reservation stays charged, since it can't be settled: %s", e)

    def _used(self, kwargs: Mapping[str, Any], response: Any) -> int | None:
        """Returns the tokens that a call has used, if LiteLLM knows it."""
        usage = getattr(response, "usage", None)
        if self.used is not None and usage is not None:
            return max(0, int(self.used(usage)))
        used = (kwargs.get("standard_logging_object") or {}).get("total_tokens")
        if not used:
            used = getattr(usage, "total_tokens", None) or used
        return used if isinstance(used, int) else None


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
