"""The callback in LiteLLM's proxy, a process of its own, before a server that speaks as a model's does.

Without what ``litellm[proxy]`` installs it is left out. LITELLM_PROXY is a Python that has it, in place of the tests' own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from nodes import Node, eventually, free_port
from rlnode import Client

PYTHON = os.environ.get("LITELLM_PROXY", sys.executable)
MESSAGES = [{"role": "user", "content": "Say something long, please."}]
LIMITS: Any = [{"limit": 1_000_000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}]
NAMESPACE = "proxy"
PROMPT = 13  # tokens of MESSAGES
HEADERS = {"Authorization": "Bearer sk-test"}

CALLBACK = """
import os
from rlnode.litellm import RlnodeCallback
limiter = RlnodeCallback(nodes=os.environ["NODE"], on_error="closed", namespace="proxy", key=lambda who: who["end_user"],
    limits=[{"limit": 1_000_000, "per": "24h", "unit": "tokens", "algorithm": "fixed-window"}])
"""

CONFIG = """
model_list:
  - {{model_name: "*", litellm_params: {{model: "openai/*", api_base: "{model}", api_key: none}}}}
litellm_settings: {{callbacks: ["limiter_of_test.limiter"], num_retries: 0}}
router_settings: {{num_retries: 0, disable_cooldowns: true}}
general_settings: {{master_key: sk-test}}
"""


# What a model sends: an event of a chat, of a completion and of a response, and a whole response.
CHUNK = {
    "id": "x",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": "word "}}],
}
TEXT = {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [{"index": 0, "text": "word ", "finish_reason": None}]}
DELTA = {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "word "}
OUTPUT = {"type": "output_text", "text": "words", "annotations": []}
RESPONSE: dict[str, Any] = {
    "type": "response.created",
    "sequence_number": 0,
    "response": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt-4o",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [OUTPUT]}],
        "usage": {
            "input_tokens": 10,
            "output_tokens": 50,
            "total_tokens": 60,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    },
}


class Model:
    """An OpenAI-compatible server: what it does is in the model's name."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over = threading.Event()
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.asked.append(body["model"])
                name = body["model"]
                if "fail" in name:
                    return self.whole(500, {"error": {"message": "it fails", "type": "server_error", "code": "500"}})
                if "slow" in name:
                    model.over.wait(1)
                if self.path.endswith("/responses"):
                    return self.stream([RESPONSE], DELTA, False) if body.get("stream") else self.whole(200, RESPONSE["response"])
                if body.get("stream"):
                    return self.stream([], CHUNK if "chat" in self.path else TEXT, "breaks" in name)
                usage = {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60}
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "words"}}
                self.whole(200, {"id": "x", "object": "chat.completion", "created": 1, "model": name, "choices": [choice], "usage": usage})

            def whole(self, status: int, found: Any) -> None:
                text = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def stream(self, first: list[Any], event: Any, breaks: bool) -> None:
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for one in [*first, event, event, event, event]:
                    self.wfile.write(f"data: {json.dumps(one)}\n\n".encode())
                if breaks:
                    error = {"error": {"message": "it breaks", "type": "server_error", "code": 500}}
                    self.wfile.write(f"data: {json.dumps(error)}\n\n".encode())
                    return
                while not model.over.wait(0.1):
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # the proxy hung up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def proxy(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Model]]:
    if subprocess.run([PYTHON, "-c", "import litellm.proxy.proxy_server"], capture_output=True).returncode:
        pytest.skip("litellm[proxy] is not installed")
    folder = tmp_path_factory.mktemp("proxy")
    model = Model()
    (folder / "limiter_of_test.py").write_text(CALLBACK)
    (folder / "config.yaml").write_text(CONFIG.format(model=model.url))
    port = free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "NODE": node.url,
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parents[1] / "src"), str(folder))),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
    }
    log = folder / "log"
    command = [PYTHON, "-c", "from litellm import run_server; run_server()", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        try:
            return httpx.get(f"{url}/health/liveliness", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually("LiteLLM's proxy is ready", ready, 180)
        yield url, model
    finally:
        process.terminate()
        process.wait()
        model.close()
        print(log.read_text(errors="replace")[-20_000:])


@pytest.fixture
def budget(node: Node) -> Iterator[Client]:
    client = Client(node.url, timeout=10)
    yield client
    client.close()


def used(budget: Client, user: str) -> int:
    return budget.usage(key=user, namespace=NAMESPACE, limits=LIMITS).limits[0].used


def ask(user: str, model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "user": user, "messages": MESSAGES, "max_tokens": 2000, **more}


def closes(url: str, path: str, chunks: int, body: dict[str, Any]) -> None:
    """Hangs up after some events of a stream."""
    with httpx.stream("POST", url + path, json=body, headers=HEADERS, timeout=60) as stream:
        assert stream.status_code == 200
        lines = (line for line in stream.iter_lines() if line.startswith("data:"))
        for _ in range(chunks):
            next(lines)


def until_used(budget: Client, user: str, least: int, most: int) -> None:
    """Waits until the budget shows what was delivered."""
    try:
        eventually(f"{user} has used {least} to {most}", lambda: least <= used(budget, user) <= most)
    except AssertionError as e:
        raise AssertionError(f"{e}: {used(budget, user)}") from None


def test_streams_that_are_closed(proxy: tuple[str, Model], budget: Client) -> None:
    url, _ = proxy
    for _ in range(20):
        closes(url, "/v1/chat/completions", 3, ask("closed", "m", stream=True))
    until_used(budget, "closed", 20 * (PROMPT + 3), 20 * (PROMPT + 30))
    together = [threading.Thread(target=closes, args=(url, "/v1/chat/completions", 3, ask("together", "m", stream=True))) for _ in range(20)]
    for one in together:
        one.start()
    for one in together:
        one.join()
    until_used(budget, "together", 20 * (PROMPT + 3), 20 * (PROMPT + 30))


def test_calls(proxy: tuple[str, Model], budget: Client) -> None:
    """LiteLLM ends a call whose caller hangs up: the model is paid for it."""
    url, model = proxy
    path = f"{url}/v1/chat/completions"
    assert httpx.post(path, json=ask("answered", "m"), headers=HEADERS, timeout=60).status_code == 200
    until_used(budget, "answered", 60, 60)
    calls = [socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)) for _ in range(3)]
    for call in calls:
        body = json.dumps(ask("hung up", "slow"))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-test\r\nContent-Type: application/json\r\n"
        call.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    eventually("the model was asked three times", lambda: model.asked.count("slow") == 3)
    for call in calls:
        call.close()
    until_used(budget, "hung up", 180, 180)
    assert httpx.post(path, json=ask("fails", "fail"), headers=HEADERS, timeout=60).status_code == 500
    until_used(budget, "fails", 0, 0)
    assert "it breaks" in httpx.post(path, json=ask("breaks", "breaks", stream=True), headers=HEADERS, timeout=60).text
    until_used(budget, "breaks", PROMPT + 4, PROMPT + 8)


def test_other_apis(proxy: tuple[str, Model], budget: Client) -> None:
    """LiteLLM translates one API into another by a call within the call: it is one call, with one reservation."""
    url, _ = proxy
    text = MESSAGES[0]["content"]
    responses: dict[str, Any] = {"model": "gpt-4o", "input": text, "max_output_tokens": 2000}
    messages: dict[str, Any] = {"model": "gpt-4o", "messages": MESSAGES, "max_tokens": 2000}
    closes(url, "/v1/completions", 3, {"model": "m", "user": "text", "prompt": text, "max_tokens": 2000, "stream": True})
    until_used(budget, "text", 6 + 3, 6 + 8)
    closes(url, "/v1/responses", 5, {**responses, "user": "responses", "stream": True})
    until_used(budget, "responses", 6 + 3, 6 + 8)
    closes(url, "/v1/messages", 7, {**messages, "metadata": {"user_id": "messages"}, "stream": True})
    until_used(budget, "messages", PROMPT + 3, PROMPT + 8)
    for path, body in (("/v1/responses", {**responses, "user": "all"}), ("/v1/messages", {**messages, "metadata": {"user_id": "all"}})):
        before = used(budget, "all")
        assert httpx.post(url + path, json=body, headers=HEADERS, timeout=60).status_code == 200
        until_used(budget, "all", before + 60, before + 60)
