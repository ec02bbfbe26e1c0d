"""The HTTP server of stubs within the process of a test."""

import sys
from http.server import ThreadingHTTPServer
from typing import Any

from typing_extensions import override


class StubServer(ThreadingHTTPServer):
    """A server that prints no lost connection, because its thread may do so in the output of a later test."""

    daemon_threads = True

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
