"""What is kept: the database, its schema, the writer, tokens, backups."""
