"""A node's own process answers what its SuperNode received, without a process for every message.

By default a SuperNode starts a program for each message, which loads the app the server sent along and runs it: a
second and a half before anything is done, and a server that can run whatever it likes. Flower also lets somebody else
take the messages (``--isolation process``), and this is somebody else: fedsense as it is installed on the node, with
recordings and models at hand. Nothing that a server sends is run.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx
from flwr.app import Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

TAKE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
KIND = "flwr-clientapp"
TRIES = 4  # of a request to the SuperNode, which is on this machine


def still_at_it(client: RuntimeHttpClient) -> bool:
    """Tell the SuperNode; false if it could not be told.

    Flower's own function for this interrupts the process when the SuperNode has given the task up (its server went
    away in the middle of a message). That is right for a program that answers one message, but this one answers others.
    """
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.HTTPError:
        return False
    return True


class Tasks:
    """The messages of one SuperNode."""

    def __init__(self, address: str, secret: bytes) -> None:
        """``secret`` is what the SuperNode was started with; nobody else on the machine can take its messages."""
        self._address = address
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=TAKE)
        self._client = self._open([RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed], once=True)

    def answer_one(self, answer: Callable[[RecordDict], RecordDict]) -> bool:
        """Answer a message, if there is one."""
        found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[KIND]))
        if not found.HasField("task") or not found.token:
            return False
        named = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
        client = self._open([named, RuntimeTokenHttpInterceptor(found.token)])
        alive = HeartbeatSender(lambda: still_at_it(client))
        alive.start()
        context, outcome, detail = None, SubStatus.FAILED, "it could not be answered"
        try:
            message, context, _, _ = pull_task_input(client)
            push_message(client, Message(answer(message.content), reply_to=message), context)
            outcome, detail = SubStatus.COMPLETED, ""
        finally:
            push_task_output(client, context, outcome, detail)
            if alive.is_running:
                alive.stop()
            client.close()
        return True

    def close(self) -> None:
        self._client.close()

    def _open(self, interceptors: list[ProtobufClientInterceptor], once: bool = False) -> RuntimeHttpClient:
        again = make_simple_http_retry_invoker()
        again.max_tries = 1 if once else TRIES  # by default it would try for ever, also a SuperNode that has ended
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,  # on loopback
            root_certificates=None,
            interceptors=interceptors,
            retry_invoker=again,
        )
