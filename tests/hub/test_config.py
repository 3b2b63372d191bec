"""The configuration: what is wrong is named with file, line, key and what would be right."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.cli.running import wireloom
from wireloom.hub.config import HubConfig, default_config, load_config, parse_config
from wireloom.hub.limits import SlowConsumer
from wireloom.model import ConfigError


def parse(text: str) -> HubConfig:
    return parse_config(tomllib.loads(text), text, "hub.toml", Path("data"))


def test_without_a_file_every_plain_scheme_listens_on_loopback_on_its_own_port() -> None:
    listeners = {listener.scheme.name: listener for listener in default_config(Path("data")).listeners}
    assert listeners["hsp"].address.port == 5042
    assert {listener.address.host for listener in listeners.values()} == {"127.0.0.1"}
    assert not any(listener.scheme.secure for listener in listeners.values())
    assert default_config(Path("data")).journal_folder == Path("data/journal")


def test_a_whole_file_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(
        """
        data = "elsewhere"
        [[listener]]
        url = "hsp://127.0.0.1:6000"
        profile = true
        settings = { max_payload = 100 }
        topics = { 7 = "sensors/kitchen" }
        [[listener]]
        url = "hsp://[::1]"
        [journal]
        sync = false
        segment_bytes = 1000000
        [limits]
        slow_consumer = "disconnect"
        [http]
        url = "off"
        """
    )
    config = load_config(file)
    first, second = config.listeners
    assert (first.address.port, first.topics, first.settings.max_payload) == (6000, {7: "sensors/kitchen"}, 100)  # type: ignore[attr-defined]
    assert first.settings.profile  # type: ignore[attr-defined]
    assert (second.address.host, second.address.port) == ("::1", 5042)
    assert second.settings.profile, "it is on unless it is turned off"  # type: ignore[attr-defined]
    assert not config.journal.sync
    assert config.limits.slow_consumer is SlowConsumer.DISCONNECT
    assert config.http is None
    assert config.journal_folder == Path("elsewhere/journal")
    assert load_config(file, tmp_path).journal_folder == tmp_path / "journal"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = 5\n", "hub.toml:1: data must be the path of a folder, not 5"),
        ('[[listener]]\nurl = "emp://h"\nprofile = "yes"\n', "hub.toml:3: listener: setting 'profile' is 'yes'; it must be one of auto, on, off"),
        ('[[listener]]\nurl = "yamp://h"\nprofile = "yes"\n', "hub.toml:3: listener: profile must be true or false"),
        ('[[listener]]\nurl = "hsp://h"\nprofile = "auto"\n', "hub.toml:3: listener: setting 'profile' is 'auto'"),
        ('[[listener]]\nurl = "hsp://h"\nsubscribe = "a"\n', "hub.toml:3: listener: subscribe must be a list"),
        ('[[listener]]\nurl = "hsp://h"\nsubscribe = ["a/#/b"]\n', "hub.toml:3: listener: subscribe: "),
        ('[[listener]]\nurl = "mesh://h"\nsubscribe = ["a"]\n', "hub.toml:3: listener: listeners of mesh have no"),
        ('[[listener]]\nurl = "hsp://h?max=1"\n', "unknown setting 'max'; known: max_numbers, max_payload, "),
        ('[[listener]]\nurl = "hsp://h?max_payload=x"\n', "setting 'max_payload' is 'x'"),
        ("[limits]\nqueue_bytes = -5\n", "hub.toml:2: limits: setting 'queue_bytes' is -5; it must be more than 0"),
        ('[http]\nport = 1\n', "hub.toml:2: http: unknown key 'port'; known: url"),
        ("colour = 1\n", "hub.toml:1: unknown key 'colour'; known: data, id, listener"),
        ('[[listener]]\nport = 1\n', "hub.toml:2: listener: unknown key 'port'; known: url"),
        ('\n[[listener]]\nprofile = true\n', "hub.toml:2: listener: a listener needs a url"),
        ('[[listener]]\nurl = "hsp://h"\n[[listener]]\n\nurl = "ftp://h"\n', "hub.toml:5: listener: unknown URL scheme 'ftp'"),
        ('[[listener]]\nurl = "hsp://h:x"\n', "hub.toml:2: listener: URL 'hsp://h:x': the port"),
        ('[[listener]]\nurl = "hsp://h"\nsettings = { max = 1 }\n', "hub.toml:3: listener: unknown setting 'max'; known: max_numbers, max_payload"),
        ('[[listener]]\nurl = "hsp://h"\ntopics = { 7 = "a/#" }\n', "hub.toml:3: listener: topics: topic 'a/#' holds a wildcard"),
        ('[[listener]]\nurl = "hsp://h"\ntopics = { seven = "a" }\n', "hub.toml:3: listener: topics: 'seven' is not a number"),
        ('\n[listener]\nurl = "hsp://h"\n', "hub.toml:2: write listeners as [[listener]], with two brackets"),
        ('\nlistener = ["hsp://h"]\n', "hub.toml:2: write listeners as [[listener]], with two brackets"),
        ('[[listener]]\nurl = "hsp://h:1"\n[[listener]]\nurl = "hsp://h:1"\n', "hub.toml:4: listener: there is a listener at hsp://h:1 above"),
        ("\njournal = 5\n", "hub.toml:2: journal must be a table: [journal]"),
        ("data = 'a'\n[[http]]\n", "hub.toml:2: http must be a table: [http]"),
        ("webhook = [5]\n", "hub.toml:1: webhook: write it as [[webhook]], with two brackets"),
        ("[limits]\nbusy_poll_seconds = -1\n", "hub.toml:2: limits: setting 'busy_poll_seconds' is -1.0; it must be 0 or more"),
        ('[journal]\nsync = "maybe"\n', "hub.toml:2: journal: setting 'sync' is 'maybe'; it must be of type bool"),
        ('[limits]\n\nqueue_byte = 1\n', "hub.toml:3: limits: unknown setting 'queue_byte'"),
        ('[limits]\nslow_consumer = "shout"\n', "hub.toml:2: limits: setting 'slow_consumer' is 'shout'; it must be one of drop-oldest, drop-newest, disconnect"),
        ('[http]\nurl = "https://127.0.0.1:1"\n', "hub.toml:2: http: https needs certificates"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert message in str(error.value)


def test_a_missing_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none.toml: No such file"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = \n")
    with pytest.raises(ConfigError, match=r"broken.toml: .*line 1"):
        load_config(broken)
    broken.write_bytes(b"data = '\xff'\n")
    with pytest.raises(ConfigError, match=r"broken.toml: TOML is UTF-8"):
        load_config(broken)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]"])
def test_pages_that_other_machines_can_read_are_warned_of(host: str) -> None:
    text = f'[http]\nurl = "http://{host}:5046"\n'
    (warning,) = parse(text).warnings
    assert warning.startswith("hub.toml:2: http: ")
    assert "everybody there can read /metrics, /status" in warning


@pytest.mark.parametrize("http", ["", 'url = "off"', 'url = "http://127.0.0.1:0"', 'url = "http://[::1]:0"'])
def test_pages_that_only_this_machine_can_read_are_not(http: str) -> None:
    assert parse(f"[http]\n{http}\n").warnings == ()


@pytest.mark.parametrize("asked", [True, False])
def test_pages_for_those_with_a_certificate_are_not_warned_of(tmp_path: Path, asked: bool) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("hub.example")
    tls = f'certificate = "{certificate}", key = "{key}", ca = "{authority.path}"'
    wanted = "true" if asked else "false"
    text = f'[http]\nurl = "https://0.0.0.0:5046"\ntls = {{ {tls}, require_client_certificate = {wanted} }}\n'
    assert bool(parse(text).warnings) is not asked


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """As a person sees them: a line each."""
    file = tmp_path / "hub.toml"
    file.write_text(
        """\
id = "a b"
colour = 1

[[listener]]
url = "hsp://127.0.0.1:7001"
colour = 2
settings = { max_payloat = 1 }

[[listener]]
url = "yamp://127.0.0.1:7001"

[[listener]]
url = "ftp://127.0.0.1"

[limits]
queue_bytes = -5
queue_byte = 1

[limit]
queue_bytes = 5

[http]
url = "http://127.0.0.1:7002"
port = 1

[[access.rule]]
who = ["nobody"]

[[access.rule]]
publish = ["#"]

[[route]]
topic = "a"
to = "b/#"

[journal]
sync = "maybe"
"""
    )
    done = wireloom("hub", "check", file)
    assert (done.code, done.out) == (2, b"")
    lines = [line.removeprefix(f"wireloom: {file}:").split(":")[0] for line in done.errors.splitlines()]
    assert sorted(map(int, lines)) == [1, 2, 6, 7, 10, 13, 16, 17, 19, 24, 27, 29, 34, 37], done.errors


def test_one_port_for_two_listeners_is_found() -> None:
    first = '[[listener]]\nurl = "hsp://127.0.0.1:7001"\n'
    for url in ("yamp://127.0.0.1:7001", "emp://0.0.0.0:7001", "yamp+ws://127.0.0.1:7001"):
        with pytest.raises(
            ConfigError, match=r"hub.toml:4: listener: hsp://127.0.0.1:7001 above has TCP port 7001 already"
        ):
            parse(f'{first}[[listener]]\nurl = "{url}"\n')
    with pytest.raises(ConfigError, match=r"hub.toml:4: http: the listener hsp://127.0.0.1:7001 has port 7001 already"):
        parse(f'{first}[http]\nurl = "http://127.0.0.1:7001"\n')
    with pytest.raises(ConfigError, match=r"the listener hsp://127.0.0.1:5046 has port 5046 already"):
        parse('[[listener]]\nurl = "hsp://127.0.0.1:5046"\n')
    for url in ("mesh://127.0.0.1:7001", "yamp://127.0.0.2:7001", "yamp://127.0.0.1:0", "hsp+unix:///tmp/a.sock"):
        settings = 'settings = { require = "any" }\n' if url.startswith("mesh") else ""
        parse(f'{first}[[listener]]\nurl = "{url}"\n{settings}[[listener]]\nurl = "emp://127.0.0.1:0"\n')


def test_a_rule_for_a_token_that_nobody_has_is_warned_of(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"meter-7: sha256:{'0' * 64}\n")
    text = (
        f'[access]\ntokens = "{tokens}"\n'
        '[[access.rule]]\nwho = ["token:meter-*", "token:meter-7"]\npublish = ["#"]\n'
        '[[access.rule]]\nwho = ["token:dashbord"]\nsubscribe = ["#"]\n'
    )
    (warning,) = parse(text).warnings
    assert warning == "hub.toml:7: access.rule: who: no token has the name 'dashbord'; known: meter-7"


@pytest.mark.parametrize(("text", "line"), [('data = "a"\n\n[limit]\nx = 1\n', 3), ("\n[[acess.rule]]\nwho = []\n", 2), ("[access]\n\n[access.rul]\n", 3)])  # fmt: skip
def test_a_misspelt_table_has_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"hub.toml:{line}: .*unknown key"):
        parse(text)
