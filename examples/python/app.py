"""A web API that limits its clients with redis-rl: Starlette and redis-py.

    GET  /           takes 1 unit of what RATE_LIMITS gives a client
    GET  /expensive  takes EXPENSIVE units of it
    POST /generate   takes tokens of a language model from TOKEN_LIMITS: an estimate at first, in the end the
                     number that was used
"""

import logging
import os
import re
from dataclasses import dataclass

import uvicorn
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

EXPENSIVE = 3
# Tokens that a reply of the model usually has.
USUAL_REPLY = 16
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass
class Tier:
    """5 units in 10 seconds, as in "5/10s"."""

    limit: int
    window: str
    seconds: int

    @classmethod
    def parse(cls, text: str) -> "Tier":
        match = re.fullmatch(r"\s*([1-9]\d{0,14})/(([1-9]\d{0,7})([smhd]))\s*", text)
        if not match:
            raise SystemExit(f"{text!r} is no limit such as 5/10s, with a window in s, m, h or d")
        return cls(int(match[1]), match[2], int(match[3]) * SECONDS[match[4]])


@dataclass
class Verdict:
    """What one RL call answers. Of several tiers it speaks of one, which its limit names. Times are milliseconds."""

    limited: int
    limit: int
    remaining: int
    retry_after: int
    reset_after: int


class Quota:
    """What a client may take, as in "5/10s,100/1h": 5 units in 10 seconds and 100 in an hour."""

    def __init__(self, name: str, text: str):
        tiers = [Tier.parse(tier) for tier in text.split(",")]
        for values in {tier.limit for tier in tiers}, {tier.seconds for tier in tiers}:
            if len(values) < len(tiers):
                raise SystemExit(f"of {text!r} all limits must differ, and all windows")
        self.name = name
        self.arguments = [word for tier in tiers for word in (tier.limit, tier.window)]
        # The name of a tier's policy, by its limit.
        self.policy_of = {tier.limit: f"{name}-{tier.window}" for tier in tiers}
        # Requests are the draft's default unit.
        unit = "" if name == "requests" else f';qu="{name}"'
        self.policies = ", ".join(
            f'"{self.policy_of[tier.limit]}";q={tier.limit}{unit};w={tier.seconds}' for tier in tiers
        )

    async def take(self, client: str, cost: int, *options: str) -> Verdict | None:
        """Takes units in one call for all tiers, or gives them back if `cost` is negative. None if Redis is away."""
        key = f"{self.name}:{client}"
        try:
            reply = await redis.execute_command("RL.LOG", key, *self.arguments, "COST", cost, *options)
        except RedisError as error:
            log.warning("cannot ask for the limit: %s", error)
            return None
        return Verdict(*reply)

    def fields(self, verdict: Verdict, wait_ms: int) -> dict[str, str]:
        """The header fields of draft-ietf-httpapi-ratelimit-headers-11."""
        policy = self.policy_of[verdict.limit]
        return {
            "RateLimit-Policy": self.policies,
            "RateLimit": f'"{policy}";r={verdict.remaining};t={seconds(wait_ms)}',
        }

    def allowance(self, verdict: Verdict | None) -> dict[str, str]:
        """The header fields of a response to a request that was allowed."""
        return self.fields(verdict, verdict.reset_after) if verdict else {}

    def refusal(self, verdict: Verdict | None) -> Response | None:
        """The response to a request that is not allowed; None if it is."""
        if verdict is None:
            return None if FAIL == "open" else problem(503, {"title": "The rate limiter is away"}, {})
        if not verdict.limited:
            return None
        exceeded = {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "violated-policies": [self.policy_of[verdict.limit]],
        }
        if verdict.retry_after < 0:
            # It costs more than the limit: no wait helps, so the client is not asked to try again.
            return problem(403, exceeded, self.fields(verdict, verdict.reset_after))
        fields = self.fields(verdict, verdict.retry_after)
        return problem(429, exceeded, fields | {"Retry-After": str(seconds(verdict.retry_after))})


def seconds(milliseconds: int) -> int:
    """Rounded up, so that waiting this long is enough."""
    return -(-milliseconds // 1000)


def problem(status: int, body: dict, fields: dict[str, str]) -> Response:
    return JSONResponse({"status": status} | body, status, fields, media_type="application/problem+json")


def client_of(request: Request) -> str:
    """Whom to limit: the network address that the outermost of our own PROXIES saw.

    What stands further left in X-Forwarded-For is the client's own claim. Where clients log in, name the account.
    """
    claimed = ",".join(request.headers.getlist("x-forwarded-for"))
    path = [request.client.host, *reversed([hop.strip() for hop in claimed.split(",") if hop.strip()])]
    return path[min(PROXIES, len(path) - 1)]


class RateLimit:
    """Middleware: a request takes `cost` units or is refused."""

    def __init__(self, app, quota: Quota, cost: int = 1):
        self.app, self.quota, self.cost = app, quota, cost

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        verdict = await self.quota.take(client_of(Request(scope)), self.cost)
        if refusal := self.quota.refusal(verdict):
            return await refusal(scope, receive, send)

        async def send_with_fields(message):
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.quota.allowance(verdict))
            await send(message)

        await self.app(scope, receive, send_with_fields)


async def cheap(request: Request) -> Response:
    return JSONResponse({"message": "hello"})


async def expensive(request: Request) -> Response:
    return JSONResponse({"message": "that took a while"})


async def generate(request: Request) -> Response:
    prompt = (await request.body()).decode(errors="replace")
    client = client_of(request)
    estimate = len(prompt.split()) + USUAL_REPLY
    reserved = await tokens.take(client, estimate)
    if refusal := tokens.refusal(reserved):
        return refusal

    used = 0
    try:
        reply, used = await model(prompt)
    finally:
        # Without a reservation, as Redis was away, there is nothing to give back. A negative difference gives
        # back; a positive one is counted even if that is over the limit, since the tokens are spent.
        difference = used - (estimate if reserved else 0)
        settled = await tokens.take(client, difference, "FORCE")
    return JSONResponse({"reply": reply, "tokens": used}, headers=tokens.allowance(settled or reserved))


async def model(prompt: str) -> tuple[str, int]:
    """A stand-in for a language model, which says everything twice: its reply, and the tokens used for both."""
    words = prompt.split()
    if not words:
        raise ValueError("the prompt is empty")
    return " ".join(words * 2), len(words) * 3


log = logging.getLogger(__name__)
FAIL = os.environ.get("FAIL", "open")
if FAIL not in ("open", "closed"):
    raise SystemExit("FAIL is open or closed: whether requests are answered while Redis is away")
PROXIES = int(os.environ.get("PROXIES", "0"))
TIMEOUT = int(os.environ.get("REDIS_TIMEOUT_MS", "100")) / 1000
redis = Redis.from_url(
    os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"),
    socket_connect_timeout=TIMEOUT,
    socket_timeout=TIMEOUT,
    # A command that is sent again might count twice.
    retry=Retry(NoBackoff(), 0),
)
requests = Quota("requests", os.environ.get("RATE_LIMITS", "5/10s,100/1h"))
tokens = Quota("tokens", os.environ.get("TOKEN_LIMITS", "1000/1h"))

app = Starlette(
    routes=[
        Route("/", cheap, middleware=[Middleware(RateLimit, requests)]),
        Route("/expensive", expensive, middleware=[Middleware(RateLimit, requests, cost=EXPENSIVE)]),
        Route("/generate", generate, methods=["POST"]),
    ]
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")), proxy_headers=False)
