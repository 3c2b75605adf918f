"""Errors, checks of arguments, files and text: modules that all other packages import."""
