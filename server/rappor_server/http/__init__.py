"""HTTP interface of the collector: endpoints, middleware, limits of connections, OpenAPI."""
