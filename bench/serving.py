"""Memory and latency of `mt serve` under requests of mixed lengths, on Linux.

    PYTHONPATH=. python -m bench.serving RUN --requests 20000 --clients 20

Starts the server on a free port. Each client keeps a connection and sends its next request after
the answer to the last one: words, sentences, lists, paragraphs and documents from the valid split
of the run, drawn with a fixed seed. The table on stdout has a row for each tenth of the requests.
The exit status is 1 if a request fails, or if the memory of the server at the end exceeds that
after the first tenth by more than 5 %.
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from mmap import PAGESIZE
from pathlib import Path
from random import Random
from shutil import copyfileobj
from typing import Any

from mt.config.data import DataConfig
from mt.data.splits import open_split
from mt.decoding.load import StoredModel
from mt.errors import run_reporting_errors
from mt.tables import align_columns

MOST_GROWTH = 0.05
KINDS = ("word", "sentence", "list", "libretranslate", "paragraph", "alternatives", "document")
PERCENTAGES = (38, 34, 12, 8, 4, 3, 1)
LINES = {"list": 8, "paragraph": 20, "document": 100}
"""Largest number of lines by kind, else 1; the smallest is half of it."""


class Load:
    """Requests of all clients, their times in seconds, and failed answers by kind."""

    def __init__(self, data: DataConfig, requests: int) -> None:
        self.languages = {"source": data.source_language, "target": data.target_language}
        sources = [pair.source.strip() for pair in open_split(data, "valid").pairs()]
        self.lines = [source for source in sources if source]
        self.left = iter(range(requests))
        self.lock = threading.Lock()
        self.seconds: list[float] = []
        self.failed: Counter[str] = Counter()

    def build_request(self, number: int) -> tuple[str, str, bytes, int]:
        """Return the kind, path and body of a request, and the number of texts of its answer."""
        random = Random(number)
        (kind,) = random.choices(KINDS, PERCENTAGES)
        most = LINES.get(kind, 1)
        lines = random.choices(self.lines, k=random.randint((most + 1) // 2, most))
        if kind == "document":
            page = "".join(f"<p>{line}</p>\n" for line in lines[1:]) + f"<p>A <b>{lines[0]}</b></p>"
            return kind, "/document?name=page.html", page.encode(), len(lines)
        if kind == "word":
            lines = [random.choice(lines[0].split())]
        texts = lines if kind == "list" else ["\n".join(lines)]
        fields: dict[str, Any] = {"texts": texts}
        if kind in {"libretranslate", "alternatives"}:
            count = 2 if kind == "alternatives" else 0  # at most as many as the search finds
            fields = {"q": texts, "alternatives": count, **self.languages}
        return kind, "/translate", json.dumps(fields).encode(), len(texts)

    def send(self, host: str) -> None:
        """Send requests on one connection until none is left."""
        connection = http.client.HTTPConnection(host, timeout=120)
        while True:
            with self.lock:
                if (number := next(self.left, None)) is None:
                    return connection.close()
            kind, path, body, texts = self.build_request(number)
            began = time.perf_counter()
            try:
                connection.request("POST", path, body)
                response = connection.getresponse()
                content = response.read()
                is_right = response.status == 200 and count_texts(kind, content) == texts
            except (OSError, http.client.HTTPException):
                connection.close()
                is_right = False
            with self.lock:
                self.seconds.append(time.perf_counter() - began)
                self.failed[kind] += not is_right


def count_texts(kind: str, content: bytes) -> int:
    """Return the number of texts in an answer."""
    if kind == "document":
        return content.count(b"</p>")
    answer = json.loads(content)
    return len(answer.get("translations") or answer["translatedText"])


def measure_memory(process: int) -> int:
    """Return the resident bytes of a process and its descendants."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    children = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    others = sum(measure_memory(int(child)) for text in children for child in text.split())
    return pages * PAGESIZE + others


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the server and the clients, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=20)
    options = parser.parse_args(arguments)
    load = Load(StoredModel.read(options.run).config.data, options.requests)
    command = [sys.executable, "-m", "mt", "serve", str(options.run), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        log: Any = server.stderr
        host = ""
        while not host:
            if not (line := log.readline()):
                return server.wait()
            sys.stderr.write(line)
            host = line.partition("serving at http://")[2].partition(",")[0]
        threading.Thread(target=copyfileobj, args=(log, sys.stderr)).start()
        clients = [threading.Thread(target=load.send, args=(host,)) for _ in range(options.clients)]
        try:
            return report(load, clients, server.pid, options.requests)
        finally:
            server.terminate()


def report(load: Load, clients: list[threading.Thread], process: int, requests: int) -> int:
    """Send all requests and print a row after each tenth of them; return the exit status."""
    rows: list[Sequence[str]] = [("requests", "requests/s", "p50 ms", "p99 ms", "MiB", "failed")]
    memory, done, began = list[int](), 0, time.perf_counter()
    for client in clients:
        client.start()
    for tenth in range(1, 11):
        while len(load.seconds) < requests * tenth // 10:
            time.sleep(0.01)
        memory.append(measure_memory(process))
        now, seconds = time.perf_counter(), sorted(load.seconds[done:])
        p50, p99 = (f"{1000 * seconds[int(len(seconds) * share)]:.0f}" for share in (0.5, 0.99))
        rate, size = len(seconds) / (now - began), memory[-1] / 2**20
        done, began = done + len(seconds), now
        rows.append((f"{done:,}", f"{rate:.1f}", p50, p99, f"{size:.1f}", str(load.failed.total())))
    growth = memory[-1] / memory[0] - 1
    print(align_columns(rows, right=range(6)))
    print(f"memory after the first tenth: {growth:+.1%}; failed: {dict(+load.failed)}")
    return int(growth > MOST_GROWTH or load.failed.total() > 0)


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
