"""An OpenAI-compatible vision endpoint on this machine, whose replies a test chooses."""

import base64
import io
import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

Reply = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Gives the next reply of the script, else the server's usual one."""

    server: "ChatServer"

    def do_POST(self) -> None:
        self.question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(self)
            reply = self.server.script.popleft() if self.server.script else self.server.usual
        reply(self)

    @property
    def text(self) -> str:
        return self.question["messages"][0]["content"][0]["text"]

    @property
    def image(self) -> np.ndarray:
        url = self.question["messages"][0]["content"][1]["image_url"]["url"]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,")))))

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class ChatServer(ThreadingHTTPServer):
    """Records the requests; `script` holds the replies to the next ones."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.requests: list[Handler] = []
        self.script: deque[Reply] = deque()
        self.usual: Reply = says('{"text": ""}')
        self.done = threading.Event()
        """Set at the end of the test, for replies that wait."""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_: object) -> None:
        """A client that gave up is no error of the test."""

    def stop(self) -> None:
        """Close the port: later connections are refused."""
        if not self.done.is_set():
            self.done.set()
            self.shutdown()
            self.server_close()
            self._thread.join()


def says(content: object) -> Reply:
    """A completion with this text."""
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
    return lambda handler: handler.send(200, body)


def status(code: int, body: bytes = b"", **headers: str) -> Reply:
    return lambda handler: handler.send(code, body, **headers)


def silent(handler: Handler) -> None:
    """No reply before the end of the test."""
    handler.server.done.wait()
