"""Storage: database, schema, inbox, merging, blocks, tokens and sessions."""
