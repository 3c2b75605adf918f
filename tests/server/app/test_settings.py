"""Settings: order of their sources, and invalid settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rappor_server.app.settings import Settings
from rappor_server.base.errors import ConfigError
from rappor_server.cli.setting_options import add_setting_options, read_settings

from rappor.base.errors import RapporError

NAMES = [field.name for field in dataclasses.fields(Settings)]
"""Names of all settings, which must have options and variables."""


def parse_settings(*flags: str, file: Path | None = None, **environment: str) -> Settings:
    """Return the settings of a command with a registry, flags, a file and variables."""
    parsed: list[Settings] = []

    @click.command()
    @add_setting_options(*NAMES)
    def show(**options: Any) -> None:
        parsed.append(read_settings(options))

    words = ["--registry", "m.toml", *flags, *(["--config", str(file)] if file else [])]
    result = CliRunner().invoke(show, words, env=environment, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return parsed[0]


def test_flags_come_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    """Each setting comes from the first source that has it.

    The port is in three sources, the rate in two, and the largest body only in the file.
    """
    path = tmp_path / "server.toml"
    path.write_text('port = 1\nrate = 1\nmax_body = 1\nolder = ["old.toml"]\nbody_seconds = 3\n')
    settings = parse_settings(
        *("--port", "3"), file=path, RAPPOR_SERVER_PORT="2", RAPPOR_SERVER_RATE="2", OTHER="x"
    )
    values = (settings.port, settings.rate, settings.max_body, settings.host)
    assert values == (3, 2, 1, "127.0.0.1")
    assert settings.older == ("old.toml",)
    assert settings.body_seconds == 3
    assert settings.database == "sqlite:///m.sqlite3"  # named after the registry m.toml
    assert settings == parse_settings(
        "--port", "3", RAPPOR_SERVER_CONFIG=str(path), RAPPOR_SERVER_RATE="2"
    )
    assert parse_settings(RAPPOR_SERVER_PAGES="true", RAPPOR_SERVER_ADMIN="127.0.0.1:1").pages
    assert not parse_settings().pages
    # A variable separates the items of a list by commas. A flag is repeated for each item.
    settings = parse_settings(RAPPOR_SERVER_ORIGINS="https://a,https://b")
    assert settings.origins == ("https://a", "https://b")
    assert parse_settings("--origins", "https://a", "--origins", "b").origins == ("https://a", "b")
    assert parse_settings("--origins", "https://a,b").origins == ("https://a,b",)


@pytest.mark.parametrize("proxies", ["", "*", "10.0.0.0/8, 192.0.2.1", "::1,2001:db8::/32"])
def test_proxies_are_addresses_and_networks(proxies: str) -> None:
    """No proxy, all addresses, or a list of addresses and networks can be trusted."""
    assert parse_settings(f"--proxies={proxies}").proxies == proxies


def test_defaults_are_those_of_the_record() -> None:
    """A command without options has the defaults of `Settings`."""
    assert parse_settings() == Settings(registry="m.toml")


# Flags, text of the file of settings, and a part of the message.
INVALID = (
    ("", "prot = 1", "prot must name a setting; did you mean port"),
    ("", 'port = "x"', "server.toml: port must be an integer in [0, 65535], got 'x'"),
    ("", "port = true", "server.toml: port must be an integer in [0, 65535], got True"),
    ("", "port = 2.5", "server.toml: port must be an integer in [0, 65535], got 2.5"),
    ("", "max_body = 0", "server.toml: max_body must be an integer of at least 1, got 0"),
    ("", "body_seconds = nan", "body_seconds must be a number of seconds above 0, got nan"),
    ("", "pages = 1", "server.toml: pages must be true or false, got 1"),
    ("", "host = 5", "server.toml: host must be a text, got 5"),
    ("", 'suspicious = "x"', "suspicious must be one of refuse, accept, got 'x'"),
    ("", 'admin = "x"', "server.toml: admin must be HOST:PORT, got 'x'"),
    ("", 'tls_key = "k"', "server.toml: tls_certificate and tls_key must be set together"),
    ("", "port = ", "must be TOML"),
    ("", 'origins = "https://a"', "server.toml: origins must be a list of texts"),
    ("", "older = [1]", "server.toml: older must be a list of texts, got [1]"),
    ("", "port = [1]", "server.toml: port must be an integer in [0, 65535], got [1]"),
    ("", 'proxies = ["::1"]', "proxies must be a text of addresses separated by commas, got ["),
    # A URL may contain a password.
    ("", 'database = ["postgresql://a:b@c/d"]', "database must be a text, got a list"),
    ("--port 70000", "", "70000 is not in the range"),
    ("--database postgresql://a:b@c/d", "", "no password in a flag"),
    ("--rate -1", "", "-1 is not in the range"),
    ("--max-body 0", "", "0 is not in the range"),
    ("--body-seconds nan", "", "nan is not a number of seconds above 0"),
    ("--suspicious maybe", "", "is not one of 'refuse', 'accept'"),
    ("--pages", "", "such as --admin 127.0.0.1:9090"),
    ("--admin 127.0.0.1:65536", "", "admin must have a port in [0, 65535]"),
    ("--proxies proxy.example", "", "must be addresses or networks, separated by commas"),
    ("--proxies 127.0.0.1,10.0.0.5/8", "", "got '10.0.0.5/8'"),
    ("--proxies *,127.0.0.1", "", "got '*'"),
    ("--tls-key k", "", "must be set together"),
    ("--registry=", "", "registry must be given with --registry FILE, in RAPPOR_SERVER_REGISTRY"),
)


@pytest.mark.parametrize(("flags", "text", "message"), INVALID)
def test_invalid_settings_are_refused(flags: str, text: str, message: str, tmp_path: Path) -> None:
    """The error names the setting, and suggests a similar name."""
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises((RapporError, click.BadParameter)) as caught:
        parse_settings(*flags.split(), file=path)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["2030-01-01", "{a = 1}"])
def test_a_value_of_a_wrong_type_is_named_with_its_file(
    name: str, text: str, tmp_path: Path
) -> None:
    """A date and a table are values of no setting. The error has file, key, and type or value."""
    path = tmp_path / "server.toml"
    path.write_text(f"{name} = {text}\n")
    with pytest.raises(ConfigError, match=rf"^{path}: {name} must be .*, got ."):
        parse_settings(file=path)


@pytest.mark.parametrize("service", ["", "POSTGRES_", "ADMIN_", "DATABASE_", "PORT_", "V2_EU_"])
@pytest.mark.parametrize("host", ["10.96.0.12", "[fd00::12]"])
def test_variables_of_a_service_of_kubernetes_are_no_settings(service: str, host: str) -> None:
    """Variables of a Kubernetes service that is named rappor-server change no setting.

    The same holds for a service whose name begins so, such as rappor-server-postgres. Kubernetes
    sets such variables in all containers beside the service. Their names begin with RAPPOR_SERVER_,
    as those of settings do, and RAPPOR_SERVER_PORT is also the name of a setting.
    """
    links = {
        "SERVICE_HOST": host,
        "SERVICE_PORT": "8080",
        "SERVICE_PORT_HTTP": "8080",
        "PORT": f"tcp://{host}:8080",
        "PORT_8080_TCP": f"tcp://{host}:8080",
        "PORT_8080_TCP_PROTO": "tcp",
        "PORT_8080_TCP_PORT": "8080",
        "PORT_8080_TCP_ADDR": host,
    }
    environment = {f"RAPPOR_SERVER_{service}{name}": text for name, text in links.items()}
    assert parse_settings(file=None, **environment).port == parse_settings().port
    assert parse_settings("--port", "3", file=None, **environment).port == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        # Kubernetes sets SERVICE_HOST, and no SERVICE_HOSTS.
        ("SERVICE_HOSTS", "x", "RAPPOR_SERVER_SERVICE_HOSTS must name a setting"),
        ("ADMIN_PORT", "9090", "RAPPOR_SERVER_ADMIN_PORT must name a setting"),
        ("PROT", "1", "RAPPOR_SERVER_PROT must name a setting; did you mean port"),
        ("PORT", "x", "RAPPOR_SERVER_PORT must be an integer in [0, 65535], got 'x'"),
        ("RATE", "-1", "RAPPOR_SERVER_RATE must be an integer of at least 0, got '-1'"),
        ("PAGES", "perhaps", "RAPPOR_SERVER_PAGES must be true or false, got 'perhaps'"),
        ("BODY_SECONDS", "x", "BODY_SECONDS must be a number of seconds above 0, got 'x'"),
        ("SUSPICIOUS", "x", "SUSPICIOUS must be one of refuse, accept, got 'x'"),
        ("ADMIN", "x", "RAPPOR_SERVER_ADMIN: admin must be HOST:PORT, got 'x'"),
        ("PROXIES", "x", "RAPPOR_SERVER_PROXIES: proxies must be addresses or networks"),
    ],
)
def test_invalid_variables_are_refused(name: str, text: str, message: str) -> None:
    """A variable with an unknown name or a wrong value is refused. The error names the variable."""
    with pytest.raises((RapporError, click.BadParameter)) as caught:
        parse_settings(file=None, **{f"RAPPOR_SERVER_{name}": text})
    assert message in str(caught.value)
