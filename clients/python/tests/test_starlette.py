"""Limits of single routes, in FastAPI and Starlette over HTTP, on a real server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, cast

import pytest
import redis
import redis.asyncio
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, WebSocket
from fastapi import Request as FastAPIRequest
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient, WebSocketDenialResponse

from redis_rl import MemoryLimiter
from redis_rl.asgi import Guard, Policy, Refused, Scope

from .guards import app_of, guard_of, violated
from .servers import Server

pytestmark = pytest.mark.usefixtures("abandoned")

SHOP = Policy("shop", "9/m")

Make = Callable[..., tuple[FastAPI, Any, Guard]]


@pytest.fixture
def make(server: Server) -> Make:
    return partial(app_of, server)


def test_what_the_handler_answers_has_the_fields_however_it_answers(make: Make) -> None:
    app, limit, _ = make()
    limited = [Depends(limit(Policy("all", "1/h", key=lambda scope: scope["path"])))]

    @app.get("/streams", dependencies=limited)
    async def streams() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"chunk"

        return StreamingResponse(chunks())

    @app.get("/raises", dependencies=limited)
    async def raises() -> None:
        raise HTTPException(418, "a teapot")

    @app.get("/responds", dependencies=limited)
    def responds() -> Response:
        return PlainTextResponse("own", headers={"x-own": "field"})

    @app.get("/needs", dependencies=limited)
    async def needs(number: int) -> int:
        return number

    with TestClient(app) as site:
        for path, status in ("/streams", 200), ("/raises", 418), ("/responds", 200), ("/needs", 422):
            response = site.get(path)
            assert response.status_code == status
            assert response.headers["ratelimit"] == '"all-1h";r=0;t=3600'
            assert violated(site.get(path)) == ["all-1h"]


def test_the_fields_of_the_middleware_and_of_the_route_are_one_list(make: Make) -> None:
    app, limit, _ = make("9/h")

    @app.get("/", dependencies=[Depends(limit(Policy("search", "2/10m")))])
    async def index() -> str:
        return "hello"

    with TestClient(app) as site:
        first, _, third = [site.get("/") for _ in range(3)]
    assert first.headers.get_list("ratelimit-policy") == ['"requests-1h";q=9;w=3600, "search-10m";q=2;w=600']
    assert first.headers.get_list("ratelimit") == ['"requests-1h";r=8;t=3600, "search-10m";r=1;t=600']
    # A limit that does not refuse has no wait that would lie beyond Retry-After.
    wait = int(third.headers["retry-after"])
    assert third.headers.get_list("ratelimit") == [f'"requests-1h";r=7, "search-10m";r=0;t={wait}']
    assert violated(third) == ["search-10m"]


def test_a_limit_of_a_route_has_its_whole_path_as_the_name_and_that_of_a_router_has_its_own(
    make: Make, raw: redis.Redis
) -> None:
    app, limit, _ = make(key=lambda scope: "me")
    router = APIRouter(prefix="/shop", dependencies=[Depends(limit(SHOP))])

    @router.get("/{item}", dependencies=[Depends(limit("9/h"))])
    async def show(item: int) -> int:
        return item

    @router.post("/")
    async def add() -> int:
        return 1

    app.include_router(router, prefix="/v1")
    with TestClient(app) as site:
        for answer in (site.get("/v1/shop/1"), site.get("/v1/shop/2"), site.post("/v1/shop/")):
            assert answer.status_code == 200
    windows = {"GET /v1/shop/:item:me": "1h", "shop:me": "1m"}
    left = {key: raw.execute_command("RL.PEEK", key, 9, window)[2] for key, window in windows.items()}
    assert left == {"GET /v1/shop/:item:me": 7, "shop:me": 6}


@pytest.mark.parametrize("place", ["application", "router", "router with a prefix", "inclusion", "inner router"])
def test_a_text_on_a_router_limits_each_of_its_routes_by_itself(server: Server, place: str) -> None:
    guard = guard_of(server)
    limited = [Depends(guard.limit("1/h"))]
    router = APIRouter(
        prefix="/a" if place == "router with a prefix" else "", dependencies=limited if "router" in place else None
    )
    for number in range(2):
        router.add_api_route(f"/{number}", lambda: "hello")
    app = FastAPI(dependencies=limited if place == "application" else None)
    app.add_middleware(guard.middleware)
    if place == "inner router":
        outer = APIRouter()
        outer.include_router(router)
        router = outer
    app.include_router(router, dependencies=limited if place == "inclusion" else None)
    before = "/a" if place == "router with a prefix" else ""
    with TestClient(app) as site:
        told = [site.get(f"{before}{path}") for path in ("/0", "/1", "/0", "/1")]
    assert [answer.status_code for answer in told] == [200, 200, 429, 429]
    assert told[0].headers["RateLimit-Policy"].endswith(f'"GET {before}/0-1h";q=1;w=3600')


def test_the_path_of_a_mount_belongs_to_the_name(make: Make, raw: redis.Redis) -> None:
    app, limit, _ = make(key=lambda scope: "me")
    for version in ("/v1", "/v2"):
        inner = FastAPI()
        inner.add_api_route("/z", lambda: "hello", dependencies=[Depends(limit("9/h"))])
        app.mount(version, inner)

    async def hello(request: Request) -> Response:
        return JSONResponse("hello")

    limited = [Middleware(limit("9/h").middleware)]
    app.mount("/outer", Starlette(routes=[Mount("/inner", routes=[Route("/", hello)], middleware=limited)]))
    with TestClient(app, root_path="/proxy") as site:
        for path in ("/v1/z", "/v2/z", "/outer/inner/"):
            assert site.get(f"/proxy{path}").status_code == 200
    assert sorted(raw.keys()) == ["/outer/inner:me", "GET /v1/z:me", "GET /v2/z:me"]


def test_what_a_client_writes_in_the_path_of_a_mount_is_in_no_name(make: Make) -> None:
    inner, (app, limit, _) = FastAPI(), make()
    inner.add_api_route("/z/{item}", lambda item: "hello", dependencies=[Depends(limit("9/h"))])
    app.mount("/{tenant}", inner)
    with (
        TestClient(app) as site,
        pytest.raises(ValueError, match="no single route is known here: give the limit a name"),
    ):
        site.get("/acme/z/1")


def test_a_parameter_of_a_mount_that_its_route_hides_is_in_no_name(make: Make) -> None:
    inner, (app, limit, _) = FastAPI(), make()
    inner.add_api_route("/z/{item}", lambda item: "hello", dependencies=[Depends(limit("9/h"))])
    app.mount("/{item}", inner)
    with (
        pytest.raises(ValueError, match="item} stands in the path of a mount too: give the limit a name"),
        TestClient(app),
    ):
        pass


def test_two_texts_on_one_route_are_an_error_at_the_start(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    app, limit, _ = make()
    app.get("/b", dependencies=[Depends(limit("9/h")), Depends(limit("1/h"))])(lambda: "hello")
    cause = 'two texts limit one route: give one a name, Policy("search", "9/h")'
    with pytest.raises(ValueError, match="two texts limit one route"), TestClient(app):
        pass
    site = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    with pytest.raises(SystemExit):
        site.run()
    assert cause in caplog.messages


@pytest.mark.parametrize("place", ["function", "class", "route", "mount"])
def test_a_text_on_two_routes_of_starlette_limits_each_by_itself(server: Server, place: str) -> None:
    guard = guard_of(server)
    limit = guard.limit("1/h")

    async def hello(request: Any) -> Response:
        return PlainTextResponse("hello")

    limited_hello = limit(hello) if place == "function" else hello

    class Endpoint(HTTPEndpoint):
        @limit
        async def get(self, request: Request) -> Response:
            return PlainTextResponse("hello")

    limited = [Middleware(GZipMiddleware), Middleware(limit.middleware)]
    routes: dict[str, Callable[[str], Any]] = {
        "function": lambda path: Route(path, limited_hello),
        "class": lambda path: Route(path, Endpoint),
        "route": lambda path: Route(path, hello, middleware=limited),
        "mount": lambda path: Mount(path, routes=[Route("/", hello)], middleware=limited),
    }
    app = Starlette(routes=list(map(routes[place], ("/a", "/b"))), middleware=[Middleware(guard.middleware)])
    with TestClient(app) as site:
        assert [site.get(path).status_code for path in ("/a", "/b", "/a", "/b")] == [200, 200, 429, 429]


def test_where_starlette_tells_the_handler_alone_each_route_has_its_own_limit(server: Server) -> None:
    """So older versions do."""
    guard = guard_of(server)

    async def first(request: Request) -> None: ...
    async def second(request: Request) -> None: ...

    app = Starlette(routes=[Route("/a", first), Route("/b", second)])
    scopes: list[Scope] = [{"type": "http", "app": app, "endpoint": endpoint} for endpoint in (first, second, first)]
    assert [guard._route(scope, guard.limit("1/h")) for scope in scopes] == ["GET /a", "GET /b", "GET /a"]


def test_policies_of_a_route_may_be_several_or_depend_on_the_request(make: Make) -> None:
    user, team = Policy("user", "1/h", key=lambda scope: "{acme}bob"), Policy("team", "9/h", key=lambda _: "{acme}")

    async def plan(scope: Scope) -> list[Policy] | None:
        return None if scope["query_string"] == b"staff" else [user, team]

    app, limit, _ = make()

    @app.get("/both", dependencies=[Depends(limit([user, team]))])
    @app.get("/plan", dependencies=[Depends(limit(plan))])
    async def both() -> str:
        return "hello"

    with TestClient(app) as site:
        assert site.get("/both").headers["ratelimit"] == '"user-1h";r=0;t=3600, "team-1h";r=8;t=3600'
        assert violated(site.get("/plan")) == ["user-1h"]
        answer = site.get("/plan?staff")
        assert (answer.status_code, "ratelimit" in answer.headers) == (200, False)


def test_what_an_earlier_dependency_finds_out_may_be_the_key(make: Make, raw: redis.Redis) -> None:
    app, limit, _ = make()

    async def user(request: FastAPIRequest) -> None:
        request.state.user = request.headers["authorization"]

    limited = limit(Policy("user", "1/h", key=lambda scope: scope["state"]["user"]))

    @app.get("/", dependencies=[Depends(user), Depends(limited)])
    async def index() -> str:
        return "hello"

    with TestClient(app) as site:
        statuses = [site.get("/", headers={"authorization": name}).status_code for name in ("bob", "eve", "bob")]
    assert statuses == [200, 200, 429]
    assert sorted(raw.keys()) == ["user:bob", "user:eve"]


def test_a_test_of_the_application_may_override_a_limit(make: Make) -> None:
    app, limit, _ = make()
    none = limit("0/h")

    @app.get("/", dependencies=[Depends(none)])
    async def index() -> str:
        return "hello"

    with TestClient(app) as site:
        assert site.get("/").status_code == 403
        app.dependency_overrides[none] = lambda: None
        assert site.get("/").status_code == 200


def test_a_refusal_that_the_application_does_not_answer_is_sent(server: Server) -> None:
    # So do old versions of Starlette with what is raised in a websocket.
    guard = guard_of(server)
    limit = guard.limit(Policy("none", "0/h"))

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        with contextlib.suppress(Refused):
            await limit(HTTPConnection(scope))

    site = TestClient(guard.middleware(application))
    assert violated(site.get("/")) == ["none-1h"]
    with pytest.raises(WebSocketDenialResponse) as denied, site.websocket_connect("/"):
        pass
    assert violated(denied.value) == ["none-1h"]


def test_an_answer_that_has_begun_goes_on_whatever_is_refused_then(server: Server) -> None:
    guard = guard_of(server)
    limit = guard.limit(Policy("none", "0/h"))

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with contextlib.suppress(Refused):
            await limit(HTTPConnection(scope))
        await send({"type": "http.response.body", "body": b"all of it"})

    answer = TestClient(guard.middleware(application)).get("/")
    assert (answer.status_code, answer.content) == (200, b"all of it")


def test_handlers_of_starlette_are_decorated(server: Server) -> None:
    guard = guard_of(server)
    limit = guard.limit

    @limit(Policy("hello", "1/h"))
    async def hello(request: Request) -> Response:
        return JSONResponse("hello")

    @limit(Policy("sync", "1/h"))
    def sync(request: Request) -> Response:
        return JSONResponse("in a thread")

    class Endpoint(HTTPEndpoint):
        @limit(Policy("get", "1/h"))
        async def get(self, request: Request) -> Response:
            return JSONResponse("got")

        @limit("5/h")
        async def post(self, request: Request) -> Response:
            return JSONResponse("posted")

    routes = [Route("/hello", hello), Route("/sync", sync), Mount("/sub", routes=[Route("/get", Endpoint)])]
    app = Starlette(routes=routes, middleware=[Middleware(guard.middleware)])
    with TestClient(app) as site:
        for path, name in ("/hello", "hello"), ("/sync", "sync"), ("/sub/get", "get"):
            assert site.get(path).headers["ratelimit"] == f'"{name}-1h";r=0;t=3600'
            assert violated(site.get(path)) == [f"{name}-1h"]
        assert '"/sub/get-1h"' in site.post("/sub/get").headers["ratelimit"]


def test_a_decorated_handler_of_fastapi_keeps_its_parameters(make: Make) -> None:
    app, limit, _ = make()

    @app.get("/items/{item}")
    @limit("1/h")
    async def show(item: int, request: FastAPIRequest) -> int:
        return item

    with TestClient(app) as site:
        assert (site.get("/items/7").json(), site.get("/items/8").status_code) == (7, 429)


def test_a_decorated_handler_without_a_request_is_an_error_that_says_so(server: Server) -> None:
    limit = guard_of(server).limit

    async def nothing() -> None: ...
    async def others(q: str, page: int = 1) -> None: ...
    async def annotated(q: Annotated[str, Query()], user: str | None = None) -> None: ...
    async def one(q: str, request: FastAPIRequest) -> None: ...
    async def either(request: Request | WebSocket) -> None: ...
    async def anything(request: Any) -> None: ...
    async def untold(request) -> None: ...  # type: ignore[no-untyped-def]

    for wrong in (nothing, others, annotated):
        with pytest.raises(
            TypeError, match=rf"{wrong.__name__} needs a parameter for its request; in FastAPI there is"
        ):
            limit("1/h")(wrong)
    for right in (one, either, anything, untold, functools.partial(one, "q")):
        limit("1/h")(right)


@pytest.mark.parametrize("where", ["application", "router", "mount"])
def test_a_limit_above_the_decorator_of_its_route_is_an_error_at_the_start(make: Make, where: str) -> None:
    app, limit, _ = make()
    place: Any = {"application": app, "router": APIRouter(), "mount": FastAPI()}[where]

    @limit("1/h")
    @place.get("/hello")
    async def hello(request: FastAPIRequest) -> str:
        return "hello"

    if where == "router":
        app.include_router(place)
    elif where == "mount":
        app.mount("/inner", place)
    cause = r"the route of .*hello is made without its limit: write @guard\.limit\(\.\.\.\) below the route's"
    with pytest.raises(TypeError, match=cause), TestClient(app):
        pass
    # Without a startup, at each request.
    for _ in range(2):
        with pytest.raises(TypeError, match=cause):
            TestClient(app).get("/hello")


def test_a_handler_may_have_a_route_with_its_limit_and_one_without(make: Make) -> None:
    app, limit, _ = make()

    async def hello(request: FastAPIRequest) -> str:
        return "hello"

    @functools.wraps(hello)
    async def inner(request: FastAPIRequest) -> str:
        return await hello(request)

    limited = limit(Policy("a", "1/h"))(limit(Policy("b", "2/h"))(hello))

    @functools.wraps(limited)
    async def outer(request: FastAPIRequest) -> str:
        return cast(str, await limited(request))

    for path, handler in ("/free", hello), ("/limited", outer), ("/inner", limit("3/h")(inner)):
        app.get(path)(handler)
    with TestClient(app) as site:
        assert [site.get(path).status_code for path in ("/limited", "/free", "/limited")] == [200, 200, 429]


def test_off_asyncio_the_error_says_so_before_the_first_request_and_is_not_redis_being_away(server: Server) -> None:
    app, guard = FastAPI(), guard_of(server, "1/h", fail="open")
    app.add_middleware(guard.middleware)
    cause = "does not run on asyncio, .* start the server on asyncio instead of trio"
    with pytest.raises(RuntimeError, match=cause), TestClient(app, backend="trio"):
        pass
    with pytest.raises(RuntimeError, match=cause):
        TestClient(app, backend="trio").get("/")


def test_a_limiter_in_memory_needs_no_asyncio() -> None:
    app, guard = FastAPI(), Guard(MemoryLimiter(), "1/h")
    app.add_middleware(guard.middleware)
    with TestClient(app, backend="trio") as site:
        assert [site.get("/openapi.json").status_code for _ in range(2)] == [200, 429]


def test_what_needs_the_middleware_is_an_error_that_names_it(server: Server) -> None:
    app, guard = FastAPI(), guard_of(server)

    @app.get("/route", dependencies=[Depends(guard.limit("1/h"))])
    async def route() -> None: ...

    @app.get("/take")
    async def take(request: FastAPIRequest) -> None:
        await guard.take(request, Policy("none", "0/h"))

    with TestClient(app) as site:
        for path in ("/route", "/take"):
            with pytest.raises(RuntimeError, match=r"needs the guard in front of the application: guard\.middleware"):
                site.get(path)


def test_mistakes_are_errors_before_the_first_request(server: Server) -> None:
    limit = guard_of(server).limit
    mistakes: list[Any] = [
        ("5/ten", "is not a quota"),
        (None, "policies are needed"),
        (["5/10s"], "a Policy is needed"),
    ]
    for wrong, error in mistakes:
        with pytest.raises((ValueError, TypeError), match=error):
            limit(wrong)


def test_a_route_may_not_limit_under_a_name_that_the_middleware_limits_under(server: Server) -> None:
    limit = guard_of(server, [Policy("everybody", "9/m"), Policy("plan", "9/h")]).limit
    for wrong in (
        lambda: limit(Policy("plan", "1/s")),
        lambda: limit([Policy("search", "1/s"), Policy("plan", "1/s")]),
        lambda: limit(Policy("plan", "1/s")),
    ):
        with pytest.raises(ValueError, match="each policy of a request needs a name of its own"):
            wrong()
    limit(Policy("search", "1/s"))
    # Nobody knows yet what a function chooses.
    guard_of(server, lambda scope: Policy("plan", "9/h")).limit(Policy("plan", "1/s"))


def test_what_other_middleware_adds_to_a_refusal_stays(server: Server) -> None:
    guard = guard_of(server)
    limit = guard.limit
    seen: list[int] = []
    app = FastAPI()
    app.add_middleware(GZipMiddleware, minimum_size=1)

    @app.middleware("http")
    async def identify(request: FastAPIRequest, call_next: Any) -> Any:
        response = await call_next(request)
        seen.append(response.status_code)
        response.headers["x-request-id"] = "7"
        return response

    @app.exception_handler(HTTPException)
    async def unify(request: FastAPIRequest, error: HTTPException) -> Response:
        return JSONResponse({"error": str(error)}, error.status_code)

    app.add_middleware(guard.middleware)

    @app.get("/", dependencies=[Depends(limit(Policy("none", "0/h")))])
    async def index() -> str:
        return "hello"

    with TestClient(app) as site:
        answer = site.get("/")
    assert violated(answer) == ["none-1h"]
    assert (seen, answer.headers["x-request-id"]) == ([403], "7")
    assert "content-encoding" not in answer.headers


def test_middleware_around_a_route_sees_its_refusal_and_adds_to_it(server: Server) -> None:
    guard, seen = guard_of(server), []

    class Adds:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
            async def sees(message: Any) -> None:
                seen.append((message["type"], message.get("status")))
                if "headers" in message:
                    message["headers"].append((b"x-own", b"field"))
                await send(message)

            await self.app(scope, receive, sees)

    async def hello(request: Request) -> Response:
        raise AssertionError("it is not asked")

    limited = [Middleware(Adds), Middleware(GZipMiddleware), Middleware(guard.limit(Policy("none", "0/h")).middleware)]
    app = Starlette(routes=[Route("/", hello, middleware=limited)], middleware=[Middleware(guard.middleware)])
    with TestClient(app) as site:
        answer = site.get("/")
    assert (violated(answer), answer.headers["x-own"]) == (["none-1h"], "field")
    assert seen == [("http.response.start", 403), ("http.response.body", None)]


def test_a_refusal_beside_an_exception_that_nobody_handles_is_answered(make: Make) -> None:
    app, _, guard = make("9/h")

    @app.get("/fails")
    async def fails(request: Request) -> str:
        await guard.take(request, Policy("none", "0/h"))
        raise ZeroDivisionError

    with TestClient(app, raise_server_exceptions=False) as site:
        assert violated(site.get("/fails")) == ["none-1h"]


def test_an_exception_of_a_middleware_further_in_goes_on_to_its_handler(server: Server) -> None:
    class Fails:
        def __init__(self, app: Any) -> None:
            pass

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            raise LookupError

    async def not_found(request: Request, error: Exception) -> Response:
        return PlainTextResponse("not here", 404)

    async def never(request: Request) -> Response:
        raise NotImplementedError

    guard = guard_of(server, "9/h")
    routes = [Route("/", never, middleware=[Middleware(guard.middleware), Middleware(Fails)])]
    app = Starlette(routes=routes, exception_handlers={LookupError: not_found})
    with TestClient(app) as site:
        assert (site.get("/").status_code, site.get("/").text) == (404, "not here")


def test_the_handshake_of_a_websocket_is_limited_and_its_messages_are_not(make: Make) -> None:
    app, limit, _ = make("9/h")

    @app.websocket("/", dependencies=[Depends(limit(Policy("chat", "1/h")))])
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept(headers=[(b"x-own", b"field")])
        for _ in range(3):
            await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    with TestClient(app) as site:
        with site.websocket_connect("/") as websocket:
            fields = {(name, value) for name, value in websocket.extra_headers or () if name != b"ratelimit-policy"}
            limits = b'"requests-1h";r=8;t=3600, "chat-1h";r=0;t=3600'
            assert fields == {(b"x-own", b"field"), (b"ratelimit", limits)}
            for text in ("a", "b", "c"):
                websocket.send_text(text)
                assert websocket.receive_text() == text
        with pytest.raises(WebSocketDenialResponse) as denied, site.websocket_connect("/"):
            pass
    assert (denied.value.status_code, violated(denied.value)) == (429, ["chat-1h"])
    assert 0 < int(denied.value.headers["retry-after"]) <= 3600


async def test_a_websocket_is_closed_where_the_server_cannot_send_an_answer(server: Server) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def application(scope: Scope, receive: Any, send: Any) -> None:
        raise AssertionError("it is not asked")

    middleware = guard_of(server, Policy("requests", "0/h")).middleware
    await middleware(application)({"type": "websocket", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1013}]
