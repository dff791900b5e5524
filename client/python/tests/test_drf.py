"""The throttle in Django REST framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest
from django.conf import settings

from nodes import PATIENCE, Fake, Node, allowed, as_answer, free_port

if not settings.configured:
    settings.configure(
        DEBUG=False,
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="test_drf",
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
        MIDDLEWARE=["rlnode.drf.RateLimitHeaders"],
        REST_FRAMEWORK={"NUM_PROXIES": 1, "UNAUTHENTICATED_USER": None},
        USE_TZ=True,
        RLNODE={"nodes": ["http://127.0.0.1:1"]},
    )
    django.setup()

from django.test import Client as Browser
from django.urls import path
from rest_framework.exceptions import PermissionDenied
from rest_framework.response import Response
from rest_framework.views import APIView

import rlnode
from rlnode import drf


class Second(drf.RlnodeThrottle):
    """Asks the same once more."""


class Own(drf.RlnodeThrottle):
    limits = ({"limit": 2, "per": "1h"},)
    namespace = "drf"

    def get_key(self, request: Any, view: Any) -> str | None:
        found: str | None = request.META.get("HTTP_X_KEY")
        return found


class ByRule(drf.RlnodeThrottle):
    rule = "llm"

    def get_key(self, request: Any, view: Any) -> str:
        return "drf"

    def get_costs(self, request: Any, view: Any) -> dict[str, int]:
        return {"tokens": 600}


class View(APIView):  # type: ignore[misc]
    throttle_classes: Any = (drf.RlnodeThrottle, Second)

    def get(self, request: Any) -> Any:
        return Response({"hello": "world"})


class OwnView(View):
    throttle_classes = (Own,)


class RuleView(View):
    throttle_classes = (ByRule,)


class SlotView(View):
    """Asks from within whether there is a second slot."""

    throttle_classes = (drf.RlnodeThrottle,)

    def get(self, request: Any) -> Any:
        with drf.slot("render", request.META["HTTP_X_KEY"]) as held:
            inner = Browser().get("/slot", HTTP_X_KEY=request.META["HTTP_X_KEY"])
            if "fails" in request.GET:
                raise PermissionDenied
            return Response({"held": bool(held.id), "inner": inner.status_code, "retry": inner.headers.get("Retry-After")})


urlpatterns = [path("", View.as_view()), path("own", OwnView.as_view()), path("rule", RuleView.as_view()), path("slot", SlotView.as_view())]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Browser]]:
    """Makes a client the one of the settings."""
    made: list[rlnode.Client] = []

    def one(url: str, **options: Any) -> Browser:
        monkeypatch.setattr(settings, "RLNODE", {"nodes": [url], **options})
        monkeypatch.setattr(drf, "_made", [])
        made.append(drf.client_of_settings())
        return Browser()

    yield one
    for client in made:
        client.close()


def test_rules(use: Callable[..., Browser], start: Callable[..., Node]) -> None:
    browser = use(start().url, on_error="closed")
    for i in range(5):
        answer = browser.get("/", HTTP_X_FORWARDED_FOR="10.9.9.9, 198.51.100.9")
        assert answer.status_code == 200
        assert answer.headers["RateLimit"].startswith(f'"address";r={4 - i};')  # two throttles are one check
        assert answer.headers["X-RateLimit-Remaining"] == str(4 - i)
    refused = browser.get("/", HTTP_X_FORWARDED_FOR="198.51.100.9")
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 3600
    assert refused.headers["RateLimit"].startswith('"address";r=0;')
    assert browser.get("/", HTTP_X_FORWARDED_FOR="198.51.100.10").status_code == 200
    denied = browser.get("/", HTTP_X_FORWARDED_FOR="203.0.113.66")
    assert denied.status_code == 403
    assert "Retry-After" not in denied.headers
    assert [browser.get("/rule").status_code for _ in range(2)] == [200, 429]


def test_own_limits(use: Callable[..., Browser], node: Node) -> None:
    browser = use(node.url)
    assert [browser.get("/own", HTTP_X_KEY="a").status_code for _ in range(3)] == [200, 200, 429]
    assert [browser.get("/own").status_code for _ in range(3)] == [200, 200, 429]
    assert browser.get("/own", HTTP_X_KEY="b").status_code == 200


SLOTS = """version: 1
rules:
  - {name: address, key: [ip], limits: [{limit: 100, per: 1h}]}
  - {name: render, match: {holds: slots}, key: [user], limits: [{limit: 1, ttl: 30s, algorithm: concurrency}]}
"""


def test_slots(use: Callable[..., Browser], start: Callable[..., Node]) -> None:
    """A view holds one until it has answered, beside a throttle."""
    browser = use(start(SLOTS).url, on_error="closed", timeout=PATIENCE)
    assert browser.get("/slot?fails", HTTP_X_KEY="a").status_code == 403
    for _ in range(2):
        answer = browser.get("/slot", HTTP_X_KEY="a").json()
        assert (answer["held"], answer["inner"]) == (True, 429)
        assert 0 < int(answer["retry"]) <= 30

    nobody = f"http://127.0.0.1:{free_port()}"
    assert use(nobody, on_error="closed").get("/slot", HTTP_X_KEY="a").status_code == 503


def test_never(use: Callable[..., Browser], fake: Callable[..., Fake]) -> None:
    browser = use(fake(lambda path, body: as_answer(429, allowed(allowed=False, retry_after_ms=-1))).url)
    refused = browser.get("/")
    assert refused.status_code == 429
    assert "Retry-After" not in refused.headers


def test_no_node(use: Callable[..., Browser], fake: Callable[..., Fake]) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert use(nobody).get("/").status_code == 200
    assert use(nobody, on_error="closed").get("/").status_code == 503
    assert [use(nobody, on_error="local", local_limits=[{"limit": 9, "per": "1h"}]).get("/own").status_code for _ in range(2)] == [200, 200]
    browser = use(nobody, on_error="local", local_limits=[{"limit": 9, "per": "1h"}])
    assert [browser.get("/own").status_code for _ in range(3)] == [200, 200, 429]
    stranger = fake(lambda path, body: as_answer(401, {"status": 401, "code": "unauthorized", "title": "x", "detail": "x"}))
    assert use(stranger.url).get("/").status_code == 503
