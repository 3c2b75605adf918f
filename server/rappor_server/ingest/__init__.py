"""Checks of uploads: upload keys, parser, parameters under which reports are accepted, stops."""
