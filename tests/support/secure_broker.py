"""A broker that lets in only who proves who it is, and allows only what its ACLs allow.

It has a listener for TLS and SASL and one for TLS with client certificates. The tests themselves use the
listener without either, as the super user.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its stubs
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from replayfilter.devbroker import DevBroker, free_port
from tests.support.certificates import Authority
from tests.support.token_server import AUDIENCE, TokenServer

USER, SECRET = "orders", "pl4nted-pa55word-0f-the-tests"
WAYS = ("plain", "scram", "oauth", "mtls")  # in which a client may prove who it is

_MODULES = "org.apache.kafka.common.security"
_VALIDATOR = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
# With connections.max.reauth.ms a connection ends with its token, unless the client brings a new one in time.
# Kafka 4.1's default validator, as the broker makes it, doesn't look at the signature of a token.
_SECURITY = """\
listeners={listeners},SASL://127.0.0.1:{sasl},MTLS://127.0.0.1:{mtls}
advertised.listeners={advertised},SASL://localhost:{sasl},MTLS://localhost:{mtls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,MTLS:SSL
ssl.keystore.type=PEM
ssl.keystore.location={server}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.mtls.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required user_{user}="{secret}";
listener.name.sasl.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;
listener.name.sasl.oauthbearer.sasl.jaas.config={modules}.oauthbearer.OAuthBearerLoginModule required;
listener.name.sasl.oauthbearer.sasl.server.callback.handler.class={validator}
sasl.oauthbearer.jwt.validator.class={modules}.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.jwks.endpoint.url={keys}
sasl.oauthbearer.expected.audience={audience}
connections.max.reauth.ms=3600000
sasl.oauthbearer.expected.issuer={issuer}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""


class Permission(NamedTuple):
    """What an ACL allows. A ``name`` that ends in ``*`` stands for all that begin so."""

    kind: str  # "topic", "group" or "transactional_id"
    name: str
    operation: str  # "READ", "WRITE", ...


class SecureBroker(DevBroker):
    """A DevBroker with listeners for :data:`WAYS`; ``bootstrap`` is still the one for the super user."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.authority = Authority(folder)
        self._server = self.authority.issue("broker")
        self._clients: dict[str, Path] = {}
        self._folder = folder
        self._sasl, self._mtls = free_port(), free_port()
        self.tokens = TokenServer(SECRET)

    def start(self) -> None:
        """Start the token server and the broker, and create the user of SCRAM."""
        self.tokens.__enter__()  # first: the broker asks it for its keys
        super().start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, scram, SECRET.encode())]
        )
        made[USER].result(30)

    def stop(self) -> None:
        """Stop both."""
        super().stop()
        self.tokens.__exit__(None, None, None)

    def properties(self) -> str:
        """The settings of a DevBroker, and those of security; of two values the later one counts."""
        plain = super().properties()
        listeners = next(line for line in plain.splitlines() if line.startswith("listeners="))
        listeners = listeners.removeprefix("listeners=")
        return plain + _SECURITY.format(
            listeners=listeners, advertised=listeners.split(",")[0], sasl=self._sasl, mtls=self._mtls,
            server=self._server, authority=self.authority.path, modules=_MODULES, user=USER, secret=SECRET,
            validator=_VALIDATOR, keys=f"{self.tokens.url}/keys", audience=AUDIENCE, issuer=self.tokens.url,
        )  # fmt: skip

    def java_options(self) -> list[str]:
        """The broker fetches keys only from addresses that are allowed."""
        return [
            *super().java_options(),
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.url}/keys",
        ]

    def address(self, way: str) -> str:
        """The ``bootstrap.servers`` of the listener for a way."""
        return f"localhost:{self._mtls if way == 'mtls' else self._sasl}"

    def options(self, way: str, user: str = USER, secret: str = SECRET) -> dict[str, str]:
        """The client settings with which ``user`` connects. PLAIN and SCRAM know only :data:`USER`."""
        tls = {"ssl.ca.location": str(self.authority.path)}
        if way == "mtls":
            own = self._clients.get(user) or self._clients.setdefault(user, self.authority.issue(user))
            files = {"ssl.certificate.location": str(own), "ssl.key.location": str(own)}
            return {"security.protocol": "SSL", **tls, **files}
        login = {"sasl.username": user, "sasl.password": secret}
        mechanism = {"plain": "PLAIN", "scram": "SCRAM-SHA-512", "oauth": "OAUTHBEARER"}[way]
        if way == "oauth":
            login = {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": user,
                "sasl.oauthbearer.client.secret": secret,
                "sasl.oauthbearer.token.endpoint.url": f"{self.tokens.url}/token",
            }
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **tls, **login}

    def allow(self, permissions: Iterable[Permission], user: str = USER) -> None:
        """Create ACLs for a user, and wait until the broker applies them."""
        wanted = [_binding(permission, user) for permission in permissions]
        if not wanted:
            return
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_acls(wanted).values():
            future.result(30)
        anything: Any = None  # the stubs want a text
        everything = AclBindingFilter(
            ResourceType.ANY, anything, ResourcePatternType.ANY, f"User:{user}", anything,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not set(wanted) <= set(admin.describe_acls(everything).result(30)):
            assert time.monotonic() < deadline, "the ACLs were not applied"
            time.sleep(0.05)


def _binding(permission: Permission, user: str) -> AclBinding:
    name = permission.name.removesuffix("*")
    return AclBinding(
        ResourceType[permission.kind.upper()],
        name,
        ResourcePatternType.LITERAL if name == permission.name else ResourcePatternType.PREFIXED,
        f"User:{user}",
        "*",
        AclOperation[permission.operation],
        AclPermissionType.ALLOW,
    )


def service_permissions(name: str, inputs: Iterable[str], outputs: Iterable[str]) -> list[Permission]:
    """The permissions that a service needs, by docs/guides/secure-connections.md."""
    return [
        *(Permission("topic", topic, "READ") for topic in inputs),
        *(Permission("topic", topic, "WRITE") for topic in outputs),
        Permission("group", name, "READ"),
        Permission("transactional_id", f"{name}-*", "WRITE"),
    ]
