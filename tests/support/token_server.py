"""A small OpenID provider: it gives signed tokens for a client's id and secret, and shows its public key."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

KEY_ID, AUDIENCE = "tests", "kafka"


class TokenServer:
    """Serves ``/token`` and ``/keys`` on 127.0.0.1. The token's subject is the client's id.

    Every client id is known, with the one ``secret``. ``issued`` counts the tokens by client id. ``issuer``:
    who the tokens say has made them, if that is a lie.
    """

    def __init__(self, secret: str, issuer: str = "") -> None:
        self.issued: dict[str, int] = {}
        self.lifetime_s = 300
        self._secret = secret
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, provider._keys())

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic "))
                client, _, secret = login.decode().partition(":")
                if secret == provider._secret:
                    self._answer(200, provider._token(client))
                else:
                    self._answer(401, {"error": "invalid_client", "error_description": "unknown client"})

            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._issuer = issuer or self.url

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="token-server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _token(self, client: str) -> dict[str, Any]:
        self.issued[client] = self.issued.get(client, 0) + 1
        now = int(time.time())
        end = now + self.lifetime_s
        claims = {"sub": client, "aud": AUDIENCE, "iss": self._issuer, "iat": now, "exp": end}
        head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        signed = b".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        signature = self._key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        token = b".".join((signed, _base64(signature))).decode()
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}

    def _keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        parts = {"n": numbers.n, "e": numbers.e}
        texts = {
            name: _base64(part.to_bytes((part.bit_length() + 7) // 8)).decode()
            for name, part in parts.items()
        }
        return {"keys": [{"kty": "RSA", "kid": KEY_ID, "use": "sig", "alg": "RS256", **texts}]}


def _base64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")
