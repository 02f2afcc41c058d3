"""The door of the server: nodes come in, and nobody else.

A SuperLink of Flower 1.41 serves all its interfaces on one port: the one nodes use, which asks for their keys, and
those that start runs and enrol nodes, which (without an identity provider) ask for nothing. So the SuperLink listens
on loopback only, and what is open to the network is this: TLS, and requests to the nodes' interface, passed on.

Flower sees to it that a request is signed with the key of the node it names. It does not see to it that the messages
in it are that node's: with a key of its own a node could answer for another one whose message it knows of, or send
others messages as if it were the server. So the gate looks.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PushMessagesRequest

from fedsense.errors import RunFailed

OPEN = "/v1/fleet/"
PUSH, PULL, ALIVE = (OPEN + name for name in ("push-messages", "pull-messages", "send-node-heartbeat"))
LARGEST = 1 << 26  # bytes of one request; Flower sends large arrays in pieces of 5 MB
OWN_HEADERS = (b"host", b"connection", b"transfer-encoding", b"content-length")
SOON = 5.0  # seconds
TAKEN = "nothing can listen at {where}; is another fleet there? choose another --port"

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]


class Gate:
    """An ASGI app that passes requests of nodes on to ``address``."""

    def __init__(self, address: str, authority: Path | None) -> None:
        scheme = "https" if authority else "http"
        trust = ssl.create_default_context(cafile=str(authority)) if authority else True
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
        self._to = httpx.AsyncClient(base_url=f"{scheme}://{address}", verify=trust, timeout=120, limits=limits)
        self.received = self.sent = 0  # bytes of nodes, and to them
        self.idle = 0  # of both, those of questions for a message when there was none

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        if not _is_open(scope):
            await _reply(send, 404, [], b"")
            return
        body = bytearray()
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event.get("body", b"")
            more = event.get("more_body", False)
            if len(body) > LARGEST:
                await _reply(send, 413, [], b"")
                return
        if scope["path"] == PUSH and not _own_answers(bytes(body)):
            await _reply(send, 403, [], b"")
            return
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        try:
            answer = await self._to.request(scope["method"], scope["path"], content=bytes(body), headers=headers)
        except httpx.HTTPError:
            await _reply(send, 503, [], b"")
            return
        kept = [(n.lower(), v) for n, v in answer.headers.raw if n.lower() not in (*OWN_HEADERS, b"content-encoding")]
        received = len(body) + sum(len(n) + len(v) + 4 for n, v in scope["headers"])
        sent = len(answer.content) + sum(len(n) + len(v) + 4 for n, v in kept)
        self.received += received
        self.sent += sent
        if scope["path"] == ALIVE or (scope["path"] == PULL and not answer.content):
            self.idle += received + sent
        await _reply(send, answer.status_code, kept, answer.content)


def _is_open(scope: Scope) -> bool:
    path = str(scope["path"])
    return path.startswith(OPEN) and ".." not in path and scope["raw_path"] == path.encode() and "//" not in path


def _own_answers(body: bytes) -> bool:
    """Whether these are messages of the node whose request it is, and answers."""
    try:
        pushed = PushMessagesRequest.FromString(body)
    except Exception:  # protobuf's own: it is no such request
        return False
    about = [message.metadata for message in pushed.messages_list]
    return all(each.src_node_id == pushed.node.node_id and each.reply_to_message_id for each in about)


async def _reply(
    send: Callable[[Event], Awaitable[None]], status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    length = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


def refuse_taken(host: str, port: int) -> None:
    """Say so before anything is started if somebody listens there already."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.bind(address)
    except OSError as error:
        raise RunFailed(f"{TAKEN.format(where=f'{host}:{port}')} ({error})") from error


class OpenGate:
    """A gate that is open as long as this is used."""

    def __init__(self, host: str, port: int, address: str, certificates: Path | None) -> None:
        """``certificates`` is the server's folder of ``fleet init``; without it nothing is encrypted."""
        authority = certificates / "ca.crt" if certificates else None
        self.app = Gate(address, authority)
        config = uvicorn.Config(
            self.app,
            host=host,
            port=port,
            log_level="warning",
            lifespan="off",
            access_log=False,
            ssl_certfile=str(certificates / "server.crt") if certificates else None,
            ssl_keyfile=str(certificates / "server.key") if certificates else None,
        )
        self._server = uvicorn.Server(config)
        self._where = f"{host}:{port}"
        self._thread = threading.Thread(target=self._server.run, name="gate", daemon=True)

    def __enter__(self) -> OpenGate:
        self._thread.start()
        end = time.monotonic() + SOON
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                raise RunFailed(TAKEN.format(where=self._where))
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=SOON)
