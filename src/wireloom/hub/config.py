"""The hub's configuration: one TOML file, checked with messages that name file, line, key and what is right.

data = "wireloom-data"

[[listener]]
url = "hsp://127.0.0.1:5042"
subscribe = ["alerts/#"]
settings = { max_payload = 65536 }
topics = { 7 = "sensors/kitchen" }

[journal]
sync = true
segment_bytes = 67108864

[http]
url = "http://127.0.0.1:5046"

[limits]
queue_bytes = 4194304
slow_consumer = "drop-oldest"

[access]
tokens = "tokens"

[[access.rule]]
who = ["certificate:meter-*", "token:dashboard"]
publish = ["sensors/#"]
"""

from __future__ import annotations

import functools
import importlib.util
import re
import ssl
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeVar

from wireloom.extras import how_to_install
from wireloom.hub.access import AccessConfig, parse_access, parse_rule
from wireloom.hub.config_errors import Collector, WrongKey, taken, taken_by_pages, unknown_tokens
from wireloom.hub.limits import HubLimits, check_positive
from wireloom.hub.routes import Route, parse_route
from wireloom.hub.webhooks import WebhookConfig, parse_webhook
from wireloom.journal.archive_keys import check_recipient
from wireloom.model import ConfigError
from wireloom.peers.endpoint import split_settings
from wireloom.protocols.contract import Framing, Protocol, Scheme, Settings
from wireloom.protocols.registry import protocols
from wireloom.protocols.registry import scheme as find_scheme
from wireloom.store import is_url, open_store
from wireloom.topics import validate_pattern, validate_topic
from wireloom.transports.address import Address, is_loopback, parse_url
from wireloom.transports.registry import transport
from wireloom.transports.tls import TLS

DEFAULT_HTTP = "http://127.0.0.1:5046"
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
_LOOPBACK = "127.0.0.1"
T = TypeVar("T")
S = TypeVar("S", bound=Settings)
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class JournalSettings(Settings):
    """Where and how safely messages are stored."""

    folder: str = ""
    """Default: `journal` in the data folder."""
    sync: bool = True
    segment_bytes: int = 64 * 1024 * 1024
    refused_quota: int = 64 * 1024 * 1024
    keep_days: float = 0.0
    """Segments older than this are removed; 0: no age limit."""
    keep_bytes: int = 0
    """Beyond this size the oldest segments are removed; 0: no size limit."""
    ignore_cursors: bool = False
    """Whether to remove segments that a pipeline has not read yet."""
    deliveries: bool = False
    """Whether to record deliveries of events to subscribers, too."""
    keys: bool = True
    """Whether to record the keys of encrypted connections beside their frames, so that these can be decrypted."""

    def __post_init__(self) -> None:
        check_positive(self, "keep_days", "keep_bytes")


@dataclass(frozen=True, slots=True)
class ArchiveSettings(Settings):
    """The table `[archive]`: where sealed segments are kept permanently."""

    url: str = ""
    """`s3://bucket/prefix`, `gs://`, `az://`, or `file:///folder`."""
    every: float = 300.0
    """Seconds after which a segment is sealed even if it is not full. This bounds how far the archive is behind."""
    compression: int = 3
    """The level of zstd, from 1 to 19."""
    recipient: str = ""
    """Who can decrypt the keys of encrypted connections in the archive. Empty: the keys are not archived."""

    def __post_init__(self) -> None:
        if not self.url:
            raise ConfigError("setting 'url' is missing; it looks like s3://bucket/prefix")
        if not is_url(self.url):
            raise ConfigError(f"setting 'url' is {self.url!r}; it looks like s3://bucket/prefix or file:///folder")
        for package in ("zstandard", *(() if self.url.startswith("file:") else ("obstore",))):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(f"the package {package} is not installed: {how_to_install(package)}")
        try:
            open_store(self.url)
        except ConfigError as error:
            raise ConfigError(f"setting 'url': {error}") from None
        if not 1 <= self.every <= 86_400:
            raise ConfigError(f"setting 'every' is {self.every:g}; it must be from 1 to 86400 seconds")
        if not 1 <= self.compression <= 19:
            raise ConfigError(f"setting 'compression' is {self.compression}; it must be from 1 to 19")
        if self.recipient:
            check_recipient(self.recipient)


@dataclass(frozen=True, slots=True)
class TracingSettings(Settings):
    """The table `[tracing]`."""

    url: str = "http://127.0.0.1:4318"
    """Where spans are sent, by OTLP over HTTP. Empty: nowhere; a program that embeds the hub adds its own processor."""
    service: str = "wireloom"
    """The name of this hub in the traces."""
    sample: float = 1.0
    """The share of new traces that is kept. For a message with a context, its sender has decided."""

    def __post_init__(self) -> None:
        check_positive(self, "sample")
        if self.sample > 1:
            raise ConfigError(f"setting 'sample' is {self.sample}; it must be from 0 to 1")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"setting 'url' is {self.url!r}; it must be like http://127.0.0.1:4318")
        for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            try:
                found = importlib.util.find_spec(package)
            except ModuleNotFoundError:
                found = None
            if found is None:
                raise ConfigError(f"the package {package} is not installed: pip install 'wireloom[tracing]'")


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One address to listen on."""

    url: str
    protocol: Protocol
    scheme: Scheme
    address: Address
    settings: Settings
    topics: Mapping[int, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    certificates: TLS | None = None
    """The files that `tls` was made from, for transports with their own TLS."""
    contacts: tuple[Address, ...] = ()
    """Addresses that this listener connects to."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect."""
    subscribe: tuple[str, ...] = ()
    """Patterns whose events every peer gets without a subscribe request, as far as the rules allow."""
    internal: bool = False
    """Whether only the hub itself connects here. It has checked rights before."""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the listener. The default rights depend on it."""
        if self.scheme.local:
            return True
        return is_loopback(self.address.host) and not transport(self.scheme.transport).listens_as_client


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The table `[http]`: the address of the pages and of the endpoint for CloudEvents."""

    address: Address
    events: bool = True
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    certificates: TLS | None = None
    """The files that `tls` is made from."""
    hosts: tuple[str, ...] = ()
    """Further host names that requests may name, beside the one in `address`."""

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.address.host)

    @property
    def names(self) -> frozenset[str]:
        """Every valid host name."""
        return frozenset(name.lower() for name in ("localhost", self.address.host, *self.hosts))


@dataclass(frozen=True, slots=True)
class HubConfig:
    """The whole configuration of a hub."""

    data: Path
    listeners: tuple[ListenerConfig, ...]
    journal: JournalSettings = field(default_factory=JournalSettings)
    limits: HubLimits = field(default_factory=HubLimits)
    http: HttpConfig | None = None
    access: AccessConfig = field(default_factory=AccessConfig)
    webhooks: tuple[WebhookConfig, ...] = ()
    routes: tuple[Route, ...] = ()
    tracing: TracingSettings | None = None
    archive: ArchiveSettings | None = None
    warnings: tuple[str, ...] = ()
    """Settings that are valid but probably not intended."""
    id: str | None = None
    """The id of the hub. None: the id in its journal, or a new one."""

    @property
    def journal_folder(self) -> Path:
        """The folder of the journal."""
        return Path(self.journal.folder) if self.journal.folder else self.data / "journal"


def default_config(data: Path) -> HubConfig:
    """Loopback, every protocol on its default port, journal in the data folder.

    >>> [listener.url for listener in default_config(Path("data")).listeners][-1:]
    ['...://127.0.0.1:...']
    """
    listeners = tuple(
        make_listener(
            {
                "url": f"{scheme.name}://{_LOOPBACK}:{scheme.port}",
                "settings": dict(protocol.loopback_settings),
            }
        )
        for protocol in protocols().values()
        for scheme in protocol.schemes
        if not scheme.secure and scheme.transport in ("tcp", "ws", "udp")
    )
    return HubConfig(data, listeners, http=_http({}))


def make_listener(table: Mapping[str, object]) -> ListenerConfig:
    """A listener from its table."""
    known = ("url", "profile", "settings", "tls", "topics", "subscribe", "origins")
    for key in table:
        if key not in known:
            raise WrongKey(key, f"unknown key {key!r}; known: {', '.join(known)}")
    text = table.get("url")
    if not isinstance(text, str):
        raise WrongKey("url", "a listener needs a url, such as hsp://127.0.0.1:5042")
    try:
        url = parse_url(text)
        protocol, scheme = find_scheme(url.scheme)
        url, named = split_settings(url, protocol, transport(scheme.transport))
        address = url.address(scheme.port, local=scheme.local)
    except ConfigError as error:
        raise WrongKey("url", str(error)) from None
    values = table.get("settings", {})
    if not isinstance(values, dict):
        raise WrongKey("settings", "settings must be a table, such as { max_payload = 65536 }")
    values = {**protocol.hub_settings, **_profile(table, protocol), **named, **values}
    try:
        settings = protocol.settings(values)
    except ConfigError as error:
        raise WrongKey("settings", str(error)) from None
    context = _tls(table.get("tls"), scheme)
    certificates = table.get("tls")
    return ListenerConfig(
        text,
        protocol,
        scheme,
        address,
        settings,
        _topics(table.get("topics", {})),
        context,
        TLS(**certificates) if isinstance(certificates, dict) else None,
        tuple(_contact(each, scheme) for each in settings.contacts),
        _origins(table.get("origins"), address.host),
        _subscribe(table.get("subscribe", []), protocol),
    )


def _profile(table: Mapping[str, object], protocol: Protocol) -> Mapping[str, object]:
    """The setting `profile`, which may also be a key of the listener. Protocols without it always have topics."""
    values = {"profile": table["profile"]} if "profile" in table else {}
    if "profile" not in protocol.settings_type.__dataclass_fields__:
        if not isinstance(values.get("profile", True), bool):
            raise WrongKey("profile", f"profile must be true or false, not {values['profile']!r}")
        return {}
    try:
        protocol.settings(values)
    except ConfigError as error:
        raise WrongKey("profile", str(error)) from None
    return values


def _subscribe(values: object, protocol: Protocol) -> tuple[str, ...]:
    """Patterns that peers of a listener get without a subscribe request."""
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise WrongKey("subscribe", 'subscribe must be a list of topics and patterns, such as ["alerts/#"]')
    if values and protocol.framing is Framing.DATAGRAM:
        raise WrongKey("subscribe", f"listeners of {protocol.name} have no connections to subscribe; use its settings")
    try:
        return tuple(validate_pattern(each) for each in values)
    except ConfigError as error:
        raise WrongKey("subscribe", f"subscribe: {error}") from None


def _contact(text: str, scheme: Scheme) -> Address:
    """Parse an address, or a URL of the listener's own scheme."""
    try:
        url = parse_url(text if "://" in text else f"{scheme.name}://{text}")
        if url.scheme != scheme.name:
            raise ConfigError(f"URL {text!r}: this listener speaks {scheme.name}")
    except ConfigError as error:
        raise WrongKey("settings", str(error)) from None
    return url.address(scheme.port)


def _origins(values: object, host: str) -> tuple[str, ...]:
    """The Origins in the list, or by default those of the listener's configured host.

    The `Host` header of a request does not count: a page of another host can point its own name to this machine.
    """
    if values is None:
        hosts = ("127.0.0.1", "localhost", "[::1]") if is_loopback(host) else (f"[{host}]" if ":" in host else host,)
        return tuple(f"{scheme}://{each}:*" for each in hosts for scheme in ("http", "https"))
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise WrongKey("origins", 'origins must be a list, such as ["https://example.org"]')
    for each in values:
        if each != "*" and (not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", each) or each != each.lower()):
            raise WrongKey("origins", f"origins: {each!r} is no Origin; write scheme://host[:port], in small letters")
    return tuple(values)


def _tls(table: object, scheme: Scheme) -> ssl.SSLContext | None:
    """Load the certificates of a listener now, so that `hub check` finds errors in them."""
    if table is None and not scheme.secure:
        return None
    listens_as_client = scheme.secure and transport(scheme.transport).listens_as_client
    if table is None and listens_as_client:
        return TLS().client_context()
    if table is None:
        raise WrongKey("url", f'{scheme.name} needs certificates: tls = {{ certificate = "hub.pem", key = "hub.key" }}')
    known = ("certificate", "key", "ca", "require_client_certificate", "names")
    if not scheme.secure or not isinstance(table, dict):
        raise WrongKey("tls", f"tls is a table of {', '.join(known)}, for schemes with TLS")
    for key in table:
        if key not in known:
            raise WrongKey(key, f"tls: unknown key {key!r}; known: {', '.join(known)}")
    try:
        return TLS(**table).client_context() if listens_as_client else TLS(**table).server_context()
    except ConfigError as error:
        raise WrongKey("tls", str(error)) from None


def _topics(table: object) -> dict[int, str]:
    if not isinstance(table, dict):
        raise WrongKey("topics", 'topics must be a table from numbers to topics, such as { 7 = "sensors/kitchen" }')
    topics: dict[int, str] = {}
    for number, topic in table.items():
        if not (str(number).isdecimal() and int(number) <= 0xFFFF):
            raise WrongKey(str(number), f"topics: {number!r} is not a number from 0 to 65535")
        if not isinstance(topic, str):
            raise WrongKey(str(number), f"topics: the topic of {number} must be a text, not {topic!r}")
        try:
            topics[int(number)] = validate_topic(topic)
        except ConfigError as error:
            raise WrongKey(str(number), f"topics: {error}") from None
    return topics


def _http(table: Mapping[str, object]) -> HttpConfig | None:
    known = ("url", "events", "hosts", "tls")
    for key in table:
        if key not in known:
            raise WrongKey(key, f"unknown key {key!r}; known: {', '.join(known)}")
    text, events, hosts = table.get("url", DEFAULT_HTTP), table.get("events", True), table.get("hosts", [])
    if text == "off":
        return None
    if not isinstance(events, bool):
        raise WrongKey("events", f"events must be true or false, not {events!r}")
    if not isinstance(hosts, list) or not all(isinstance(each, str) and _HOST.fullmatch(each) for each in hosts):
        raise WrongKey("hosts", 'hosts must be a list of names without ports, such as ["hub.example.org"]')
    try:
        url = parse_url(str(text))
        if url.scheme not in ("http", "https"):
            raise ConfigError(f"URL {text!r}: pages are served over http or https, such as {DEFAULT_HTTP}")
        named = table.get("tls")
        tls = _tls(named, Scheme(url.scheme, "tcp", 80, secure=url.scheme == "https"))
        certificates = TLS(**named) if isinstance(named, dict) else None
        return HttpConfig(url.address(443 if tls else 80).with_path(""), events, tls, certificates, tuple(hosts))
    except WrongKey:
        raise
    except ConfigError as error:
        raise WrongKey("url", str(error)) from None


def load_config(path: Path, data: Path | None = None) -> HubConfig:
    """Load the configuration from a file. `data` overrides its data folder."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the configuration {path}: TOML is UTF-8, and it is not: {error}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse_config(table, text, str(path), data)


_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,60}")
_SECTIONS = ("data", "id", "listener", "journal", "http", "webhook", "route", "limits", "access", "tracing", "archive")


def parse_config(table: Mapping[str, object], text: str, name: str, data: Path | None = None) -> HubConfig:
    """Parse a configuration from a TOML table. `text` and `name` are used in error messages."""

    def wrong(section: str, number: int, error: ConfigError, key: str | None = None) -> ConfigError:
        return ConfigError(f"{name}:{_line(text, section, number, key)}: {section}: {error}")

    def shapeless(key: str, what: str) -> ConfigError:
        """The error for a section with the wrong TOML type, such as a key, or `[x]` instead of `[[x]]`."""
        return ConfigError(f"{name}:{_line(text, '', 0, key)}: {what}")

    collector = Collector()
    for key in table:
        if key not in _SECTIONS:
            collector.found.append(shapeless(key, f"unknown key {key!r}; known: {', '.join(_SECTIONS)}"))

    def each(section: str, parse: Callable[[Mapping[str, object]], T]) -> tuple[T, ...]:
        """Parse all tables of a section. Errors name their line."""
        tables = table.get(section, [])
        if not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
            collector.found.append(shapeless(section, f"{section}: write it as [[{section}]], with two brackets"))
            return ()
        found = []
        for number, entry in enumerate(tables):
            try:
                found.append(parse(entry))
            except WrongKey as error:
                collector.found.append(wrong(section, number, error, error.key))
        return tuple(found)

    listeners: list[ListenerConfig] = []
    tables = table.get("listener", [])
    if not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
        collector.found.append(shapeless("listener", "write listeners as [[listener]], with two brackets"))
        tables = []

    def listener_of(entry: Mapping[str, object]) -> ListenerConfig:
        listener = make_listener(entry)
        if why := taken(listener, listeners):
            raise WrongKey("url", why)
        return listener

    for number, entry in enumerate(tables):
        told = functools.partial(wrong, "listener", number)
        listener = collector.table(entry, listener_of, told, None)
        listeners += [] if listener is None else [listener]

    def section(kind: type[S], key: str, otherwise: D) -> S | D:
        values = table.get(key, {})
        if not isinstance(values, dict):
            collector.found.append(shapeless(key, f"{key} must be a table: [{key}]"))
            return otherwise

        def parse(given: Mapping[str, object]) -> S:
            try:
                return kind.parse(given)
            except ConfigError as error:
                named = re.search(r"setting '(\w+)'", str(error))
                raise WrongKey(named[1] if named else "", str(error)) from None

        return collector.table(values, parse, functools.partial(wrong, key, 0), otherwise)

    journal = section(JournalSettings, "journal", JournalSettings())
    limits = section(HubLimits, "limits", HubLimits())
    tracing = section(TracingSettings, "tracing", None) if "tracing" in table else None
    archive = section(ArchiveSettings, "archive", None) if "archive" in table else None
    access = _access(table.get("access", {}), wrong, collector)

    def http_of() -> HttpConfig | None:
        values = table.get("http", {})
        if not isinstance(values, dict):
            raise shapeless("http", "http must be a table: [http]")
        try:
            found = _http(values)
            if found is not None and (why := taken_by_pages(found, listeners)):
                raise WrongKey("url", why)
            return found
        except WrongKey as error:
            raise wrong("http", 0, error, error.key) from None

    http = collector.attempt(http_of, None)
    names: set[str] = set()

    def webhook_of(entry: Mapping[str, object]) -> WebhookConfig:
        webhook = parse_webhook(entry)
        if webhook.name in names:
            raise WrongKey("name", f"there is a webhook of the name {webhook.name!r} above; names are unique")
        names.add(webhook.name)
        return webhook

    webhooks = each("webhook", webhook_of)
    named = table.get("data", "wireloom-data")
    if not isinstance(named, str) or not named:
        collector.found.append(shapeless("data", f"data must be the path of a folder, not {named!r}"))
    folder = data if data is not None else Path(str(named))
    hub = table.get("id")
    if hub is not None and not (isinstance(hub, str) and _ID.fullmatch(hub)):
        what = f"id is {hub!r}; it must be 1 to 60 letters, digits, _ . and -"
        collector.found.append(shapeless("id", what))
    if not tables:
        listeners = list(default_config(folder).listeners)
    # Include listeners with errors: routes may name them.
    places: dict[str, object] = {str(entry.get("url")): entry for entry in tables}
    places.update({listener.url: listener for listener in listeners})
    routes = each("route", lambda entry: parse_route(entry, places))
    collector.check()
    warnings = tuple(
        f"{name}:{_line(text, 'listener', number, 'url')}: listener: {warning}"
        for number, listener in enumerate(listeners)
        for warning in (*_warnings(listener, access), *_held_down(listener, limits))
    )
    warnings += tuple(
        f"{name}:{_line(text, 'access.rule', number, 'who')}: access.rule: {warning}"
        for number, warning in unknown_tokens(access)
    )
    if http is not None:
        line = _line(text, "http", 0, "url")
        warnings += tuple(f"{name}:{line}: http: {warning}" for warning in _http_warnings(http))
    hub_id = hub if isinstance(hub, str) else None
    return HubConfig(
        *(folder, tuple(listeners), journal, limits, http, access, webhooks, routes, tracing, archive, warnings, hub_id)
    )


def _access(
    table: object, wrong: Callable[[str, int, ConfigError, str | None], ConfigError], collector: Collector
) -> AccessConfig:
    rules = table.get("rule") if isinstance(table, dict) else None
    good = []
    for number, rule in enumerate(rules if isinstance(rules, list) else ()):
        try:
            if isinstance(rule, dict):
                parse_rule(rule)
            good.append(rule)
        except WrongKey as error:
            collector.found.append(wrong("access.rule", number, error, error.key))
    try:
        return parse_access({**table, "rule": good} if isinstance(table, dict) and isinstance(rules, list) else table)
    except WrongKey as error:
        collector.found.append(wrong("access", 0, error, error.key))
        return AccessConfig()


def _warnings(listener: ListenerConfig, access: AccessConfig) -> Iterator[str]:
    """Warnings about a listener that other machines can reach."""
    if listener.local:
        return
    if not access.rules:
        yield (
            f"{listener.url} is reached from other machines, and no rule says who may do what there: everything is "
            "refused. Allow it with [[access.rule]], who, publish, subscribe, request, provide"
        )
    elif len(access.tokens) and not listener.scheme.secure and listener.protocol.takes_tokens:
        secure = next((each.name for each in listener.protocol.schemes if each.secure), None)
        yield f"{listener.url} carries tokens that others on the way can read; use {secure or 'TLS'} instead"


def _http_warnings(http: HttpConfig) -> Iterator[str]:
    """Warnings about the HTTP pages."""
    asks_for_certificates = http.tls is not None and http.tls.verify_mode is ssl.CERT_REQUIRED
    if not http.local and not asks_for_certificates:
        yield (
            f"{http.address} is reached from other machines, and everybody there can read /metrics, /status and "
            "/listeners: rules are for events only. Serve them on 127.0.0.1, or ask for certificates: tls with ca"
        )


def _held_down(listener: ListenerConfig, limits: HubLimits) -> Iterator[str]:
    """Sizes in a listener's settings that exceed the limits of the hub."""
    usual, held = listener.protocol.settings({}), limits.hold_down(listener.protocol, listener.settings)
    for each in fields(listener.settings):
        wanted, most = getattr(listener.settings, each.name), getattr(held, each.name)
        if wanted not in (most, getattr(usual, each.name)):
            yield f"{each.name} = {wanted} is more than [limits] allows to any message: {most} holds"


def _line(text: str, section: str, number: int, key: str | None) -> int:
    """The line of a key in the n-th table of a section, or of the table if the key is not found."""
    seen, inside, at = -1, section == "", 1
    for line_number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([\w.-]+)\s*\]+", line)
        if header:
            if key is not None and f"{header[1]}.".startswith(f"{section}.{key}.".lstrip(".")):
                return line_number
            if header[1] == section:
                seen += 1
            inside = seen == number and (header[1] == section or header[1].startswith(section + "."))
            at = line_number if inside and header[1] == section else at
        if inside and key is not None and re.search(rf"(^|[\s{{,])\"?{re.escape(key)}\"?\s*=", line):
            return line_number
    return at
