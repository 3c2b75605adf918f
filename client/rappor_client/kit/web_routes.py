"""Names of the routes of a web application: the categories that its devices report.

`rappor_client.kit.web` reports which routes an account visits, by name. This module lists the
routes of an application, and finds the route of a request. The functions read attributes of the
application and import no library of it.

Which objects the module reads, and the names that it derives:

    library    routes                                    name of a route
    Flask      `url_map` with rules                      the endpoint: `blueprint.view`
    Starlette  `routes` with routes and mounts           names of the mounts, then of the route:
                                                         `users:list`
    FastAPI    as Starlette, and routers that            names of mounts, paths of routers, then
               `include_router` has added                the name of the route

A mount without a name is named by its path. Example: a mount `/users` without a name contains the
route `list`, and a router with the prefix `/api` contains the route `ping`. Their names are
`users:list` and `api:ping`.

A request is matched by its endpoint, the function that served it. Several routes may share one
function. Then method and path of the request choose among them (`NamedRoute.is_matched_by`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from rappor.base.errors import ParamsError


@dataclasses.dataclass(frozen=True)
class NamedRoute:
    """A route and the name under which its visits are recorded.

    Attributes
    ----------
    name
        Recorded name, such as `users:list`.
    address
        Methods and path for an error message, such as `GET /users/{id}`.
    endpoint
        Function that serves the route.
    steps
        The mounts from the application to the route, then the route. Empty for Flask, whose
        requests name their endpoint, and an endpoint has one name.
    """

    name: str
    address: str
    endpoint: Any
    steps: tuple[Any, ...] = ()

    def is_matched_by(self, scope: dict[str, Any]) -> bool:
        """Return whether the application's router sends a connection to this route.

        `scope` is the connection of ASGI. Each mount removes its path from the path of the scope.
        """
        for step in self.steps:
            match, child_scope = step.matches(scope)
            # PARTIAL: the path fits, but the route has other methods. Two routes of one path with
            # different methods are different names.
            if match.name != "FULL":
                return False
            scope = {**scope, **child_scope}
        return True


def list_routes(app: Any) -> list[NamedRoute]:
    """Return the recorded routes of an application, each with a name of its own.

    The head of this module describes the names. Names were once taken from the functions, so visits
    of two routes of one function were counted together.

    Raises
    ------
    ParamsError
        Two routes have one name: their visits would be one category.
    """
    if hasattr(app, "url_map"):
        endpoints = dict.fromkeys(rule.endpoint for rule in app.url_map.iter_rules())
        return [
            NamedRoute(endpoint, endpoint, endpoint)
            for endpoint in endpoints
            if endpoint.rpartition(".")[2] != "static"  # files, not pages
        ]
    routes: dict[str, NamedRoute] = {}
    for route in _walk_routes(app.routes, _RoutePosition()):
        first = routes.setdefault(route.name, route)
        if first is not route:
            raise ParamsError(
                f"routes of app must have different names: {first.address} and {route.address} "
                f"are both {route.name!r}; give one of them another `name`"
            )
    return list(routes.values())


@dataclasses.dataclass(frozen=True)
class _RoutePosition:
    """Position of a list of routes in an application.

    Attributes
    ----------
    names
        Names of the mounts and routers that lead to the list.
    path
        Path that they have together.
    steps
        The mounts that lead to the list. Routers of FastAPI match nothing themselves.
    """

    names: tuple[str, ...] = ()
    path: str = ""
    steps: tuple[Any, ...] = ()

    def enter(self, mount: Any, mount_path: str) -> _RoutePosition:
        """Return the position of the routes of a mount or of a host."""
        name = getattr(mount, "name", None) or mount_path.strip("/")
        path = getattr(mount, "path", mount_path)
        names = (*self.names, name) if name else self.names
        return _RoutePosition(names, self.path + path, (*self.steps, mount))


def _walk_routes(
    routes: Iterable[Any], position: _RoutePosition, router: str = ""
) -> Iterator[NamedRoute]:
    """Yield the routes of a list, and of its mounts and routers, in the order of matching.

    Routes that the application hides from its documentation (`include_in_schema`) are left out.

    Parameters
    ----------
    routes
        Routes, mounts, hosts and routers.
    position
        Position of the list.
    router
        Path of the FastAPI router that contains the routes, which serves as its name. Empty without
        a router.
    """
    router_name = router.strip("/")
    names = (*position.names, router_name) if router_name else position.names
    for route in routes:
        if hasattr(route, "effective_candidates"):  # a router that FastAPI's application includes
            path = route.include_context.prefix + route.original_router.prefix
            yield from _walk_routes(route.effective_candidates(), position, path)
            continue
        # FastAPI wraps a plain route or mount of Starlette inside such a router.
        plain = getattr(route, "starlette_route", None) or route
        if hasattr(plain, "include_in_schema") and hasattr(plain, "endpoint"):
            if plain.include_in_schema and plain.endpoint is not None:
                methods = ",".join(sorted(set(plain.methods or ()) - {"HEAD"})) or "any method"
                yield NamedRoute(
                    ":".join((*names, plain.name)),
                    f"{methods} {position.path}{plain.path}",
                    plain.endpoint,
                    (*position.steps, plain),
                )
        else:
            # The path of a mount inside a router begins with the path of the router. The path of
            # the original mount has no such prefix, so the name contains the router once.
            original = getattr(route, "original_route", None) or plain
            mount_path = str(getattr(original, "path", "") or getattr(original, "host", ""))
            inside = dataclasses.replace(position, names=names).enter(plain, mount_path)
            yield from _walk_routes(getattr(plain, "routes", None) or (), inside)
