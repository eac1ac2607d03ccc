"""Chat endpoint on the loopback interface, with answers of a function."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """Raw reply; None closes the connection."""

    body: bytes | None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    byte_delay: float = 0.0
    """Seconds between the bytes of a header without an end; 0: a usual reply."""


def completion(*texts: str, **details: Any) -> Reply:
    """Return the reply of a working endpoint."""
    choices = [{"message": {"role": "assistant", "content": text}, **details} for text in texts]
    usage = {"prompt_tokens": 10, "completion_tokens": 3}
    return Reply(json.dumps({"choices": choices, "usage": usage}).encode())


@dataclass
class Endpoint:
    """Endpoint in a thread, and what it was asked."""

    url: str
    answer: Callable[[str, int], Reply]
    """Reply to a text, which is the last line of the request, asked for the n-th time from 1."""
    asked: Counter[str] = field(default_factory=Counter)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(answer: Callable[[str, int], Reply]) -> Iterator[Endpoint]:
    """Yield a running endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body together

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"].rsplit("\n", 1)[-1]
            with endpoint.lock:
                endpoint.asked[text] += 1
                endpoint.requests.append(body)
                endpoint.keys.add(self.headers["Authorization"])
                endpoint.paths.add(self.path)
                count = endpoint.asked[text]
            reply = endpoint.answer(text, count)
            time.sleep(reply.delay)
            if reply.body is None:
                self.close_connection = True
                return
            if reply.byte_delay:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while True:
                    self.wfile.write(b"a")
                    self.wfile.flush()
                    time.sleep(reply.byte_delay)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            """Print nothing for clients that have gone."""

    server = Server(("127.0.0.1", 0), Handler)
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1", answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
