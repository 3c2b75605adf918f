"""Names of the routes of a web application: the categories that its devices report.

`rappor_client.kit.web` reports which routes an account visits, by name. This module lists the
routes of an application, and finds the route of a request. The functions read attributes of the
application's objects. They import neither Flask nor Starlette nor FastAPI.

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

A request is matched by its endpoint. In Starlette and FastAPI the endpoint is the function that
served the request, and several routes may share one function. Then method and path of the request
choose among these routes (`NamedRoute.is_matched_by`). In Flask the endpoint is a string, and each
endpoint is one recorded route.
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
        Function that serves the route. In Flask: the name of the endpoint, such as
        `blueprint.view`.
    steps
        The mounts from the application to the route, then the route. Empty for Flask: a request of
        Flask contains the name of its endpoint, so no router has to be asked.
    """

    name: str
    address: str
    endpoint: Any
    steps: tuple[Any, ...] = ()

    def is_matched_by(self, scope: dict[str, Any]) -> bool:
        """Return whether the application's router sends a request to this route.

        `scope` is the dictionary by which ASGI describes a request: its method, its path and its
        parameters.
        """
        for step in self.steps:
            match, child_scope = step.matches(scope)
            # PARTIAL means that the path fits, but the route has other methods. Two routes of one
            # path with different methods have different names.
            if match.name != "FULL":
                return False
            # `child_scope` has the keys that a mount changes. Its `root_path` ends with the path of
            # the mount, so the next step compares only the rest of the request's path.
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
        Path of the list: the joined paths of the mounts that lead to the list.
    steps
        The mounts that lead to the list. Routers of FastAPI are no steps, because the path of a
        route inside a router already contains the path of the router.
    """

    names: tuple[str, ...] = ()
    path: str = ""
    steps: tuple[Any, ...] = ()

    def enter(self, mount: Any, mount_path: str) -> _RoutePosition:
        """Return the position of the routes inside a mount.

        Starlette's `Host` is also a mount here. It matches the domain of a request, not its path.

        Parameters
        ----------
        mount
            The mount. The path of a mount inside a FastAPI router begins with the router's path.
        mount_path
            Path without the router's path, or the domain of a `Host`. A mount without a name is
            named by `mount_path`.
        """
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
        # Inside such a router, FastAPI puts each route into a wrapper. For a route or mount of
        # Starlette, `starlette_route` of the wrapper is a copy whose path begins with the path of
        # the router. Routes of FastAPI itself are read from the wrapper.
        plain_route = getattr(route, "starlette_route", None) or route
        if hasattr(plain_route, "include_in_schema") and hasattr(plain_route, "endpoint"):
            if plain_route.include_in_schema and plain_route.endpoint is not None:
                methods = (
                    ",".join(sorted(set(plain_route.methods or ()) - {"HEAD"})) or "any method"
                )
                yield NamedRoute(
                    ":".join((*names, plain_route.name)),
                    f"{methods} {position.path}{plain_route.path}",
                    plain_route.endpoint,
                    (*position.steps, plain_route),
                )
        else:
            # `names` already contains the router. So a mount without a name must be named by the
            # path of the original mount. `plain_route.path` begins with the path of the router,
            # which would then appear twice in the name.
            original_route = getattr(route, "original_route", None) or plain_route
            mount_path = str(
                getattr(original_route, "path", "") or getattr(original_route, "host", "")
            )
            mount_position = dataclasses.replace(position, names=names).enter(
                plain_route, mount_path
            )
            yield from _walk_routes(getattr(plain_route, "routes", None) or (), mount_position)
