"""Access to a collector over HTTPS: released counts for analysts, and uploads for tools."""
