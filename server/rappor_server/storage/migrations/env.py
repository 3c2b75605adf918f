"""Entry point of Alembic: runs the migrations on the connection of `schema_versions.migrate`."""

from __future__ import annotations

from alembic import context

from rappor_server.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=False,
)
with context.begin_transaction():
    context.run_migrations()
