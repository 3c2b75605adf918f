"""Errors, checks of arguments, files and text: modules on which all other packages stand."""
