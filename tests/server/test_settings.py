"""Settings: where they come from, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rappor_server.errors import ConfigError
from rappor_server.settings import Settings, load


def chosen(flags: dict[str, Any], environment: dict[str, str], file: str | None) -> Settings:
    """Load settings with a registry."""
    return load({"registry": "m.toml"} | flags, environment=environment, file=file)


def test_flags_come_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    """Each setting comes from the first place that names it."""
    path = tmp_path / "server.toml"
    path.write_text('port = 1\nrate = 1\nmax_body = 1\nolder = ["old.toml"]\nbody_seconds = 3\n')
    environment = {"RAPPOR_SERVER_PORT": "2", "RAPPOR_SERVER_RATE": "2", "OTHER": "x"}
    settings = chosen({"port": 3, "host": None, "older": ()}, environment, str(path))
    assert (settings.port, settings.rate, settings.max_body, settings.host) == (
        3,
        2,
        1,
        "127.0.0.1",
    )
    assert settings.older == ("old.toml",)
    assert settings.body_seconds == 3
    assert settings.database == "sqlite:///m.sqlite3"
    pages = {"RAPPOR_SERVER_PAGES": "true", "RAPPOR_SERVER_ADMIN": "127.0.0.1:1"}
    assert chosen({}, pages, None).pages
    assert chosen({"pages": None}, pages, None).pages
    assert not chosen({}, {}, None).pages
    listed = chosen({}, {"RAPPOR_SERVER_ORIGINS": "https://a,https://b"}, None)
    assert listed.origins == ("https://a", "https://b")


@pytest.mark.parametrize(
    ("flags", "environment", "text", "message"),
    [
        (
            {},
            {"RAPPOR_SERVER_PROT": "1"},
            "",
            "RAPPOR_SERVER_PROT must name a setting; did you mean port",
        ),
        ({}, {"RAPPOR_SERVER_PORT": "x"}, "", "RAPPOR_SERVER_PORT must be a number"),
        ({}, {"RAPPOR_SERVER_PAGES": "yes"}, "", "RAPPOR_SERVER_PAGES must be true or false"),
        ({"pages": True}, {}, "", "admin must be HOST:PORT where there are pages"),
        ({}, {}, "prot = 1", "prot must name a setting; did you mean port"),
        ({}, {}, 'port = "1"', "port must be of type"),
        ({}, {}, "port = ", "must be TOML"),
        ({"port": 70000}, {}, "", "port in"),
        ({"database": "postgresql://a:b@c/d"}, {}, "", "no password in a flag"),
        ({"rate": -1}, {}, "", "rate must be at least 0"),
        ({"max_body": 0}, {}, "", "max_body must be at least 1"),
        ({"body_seconds": float("nan")}, {}, "", "body_seconds must be above 0"),
        ({"suspicious": "maybe"}, {}, "", "suspicious must be one of refuse, quarantine, accept"),
        ({"report_days": 0}, {}, "", "report_days must be at least 1"),
        ({"tls_key": "k"}, {}, "", "must be given together"),
        ({"workers": 2}, {}, "", "workers must be 1 on SQLite"),
        (
            {"workers": 2, "database": "postgresql://a/b"},
            {},
            "",
            "admin must be HOST:PORT where there are several workers",
        ),
        ({"max_connections": 0}, {}, "", "max_connections must be at least 1"),
        ({"registry": ""}, {}, "", "registry must be the path"),
    ],
)
def test_wrong_settings_are_refused(
    flags: dict[str, Any], environment: dict[str, str], text: str, message: str, tmp_path: Path
) -> None:
    """The error names the setting, and the one that was meant."""
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        chosen(flags, environment, str(path))
