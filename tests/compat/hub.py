"""A Hub on the loopback interface, and a process that asks patchwork about names, fetching from it with huggingface_hub."""

from __future__ import annotations

import builtins
import copy
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """Files by path at each revision. ``gated``: 401 or 403 to everybody. ``token``: who else is told that there is nothing.
    ``fault``: what goes wrong with every answer: "500", "dropped" connection, or body "cut" short."""

    files: dict[str, dict[str, str]]
    gated: int = 0
    token: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    authorization: str


@dataclass
class Hub:
    """Serves ``repositories`` by name at ``endpoint``, and keeps what it was asked for."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub._answer(self)

            do_GET = do_HEAD

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Handler
        # Bound all the time, never listening: while the Hub is closed nobody else can get its port.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.open()

    def open(self) -> None:
        """Serves, again at the same port after ``close``."""
        self._server = ThreadingHTTPServer(self._held.getsockname(), self._handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, name: str, files: dict[str, Any], revision: str = "main", **rules: Any) -> str:
        """A repository of these files (text, or what becomes JSON); the same name again is another revision of it."""
        held = self.repositories.setdefault(name, Repository({}, **rules))
        held.files[revision] = {path: text if isinstance(text, str) else json.dumps(text) for path, text in files.items()}
        return name

    def fetched(self, name: str, path: str = "config.json") -> list[Request]:
        """The requests for a file of a repository."""
        return [each for each in self.requests if each.path.startswith(f"/{name}/resolve/") and each.path.endswith(f"/{path}")]

    def close(self) -> None:
        """From here on connections are refused."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path, authorization = unquote(request.path.split("?")[0]), request.headers.get("Authorization", "")
        self.requests.append(Request(request.command, path, authorization))
        parts = path.removeprefix("/api/models").strip("/").split("/")
        name, kind, revision = "/".join(parts[:2]), parts[2:3], unquote(parts[3]) if len(parts) > 3 else "main"
        held = self.repositories.get(name)
        if held is None or (held.token and authorization != f"Bearer {held.token}"):
            return _reply(request, 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        if held.fault == "500":
            return _reply(request, 500, {})
        if held.fault == "dropped":
            return None
        if held.gated:
            return _reply(
                request, held.gated, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {name} is restricted"}
            )
        if revision.startswith(COMMIT[:32]):  # a commit, as the answers below name it
            revision = list(held.files)[int(revision[32:])]
        if revision not in held.files:
            return _reply(request, 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        commit = f"{COMMIT[:32]}{list(held.files).index(revision):08}"
        if path.startswith("/api/"):
            return _reply(request, 200, {}, json.dumps({"id": name, "sha": commit}) if kind in ([], ["revision"]) else "[]")
        text = held.files[revision].get("/".join(parts[4:]))
        if text is None:
            return _reply(request, 404, {"X-Repo-Commit": commit, "X-Error-Code": "EntryNotFound"})
        etag = hashlib.sha1(text.encode()).hexdigest()
        more = 100 if held.fault == "cut" else 0
        return _reply(request, 200, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}, text, more)


def _reply(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], text: str = "", more: int = 0) -> None:
    body = text.encode()
    request.send_response(status)
    for key, value in {**headers, "Content-Length": str(len(body) + more)}.items():
        request.send_header(key, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


class Asker:
    """Another Python process, which calls ``decide`` on names: huggingface_hub reads its settings when it is imported."""

    def __init__(self, endpoint: str, home: Path, **environment: str) -> None:
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
        settings |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
        # An answer from the loopback comes, however late the server's thread gets its turn.
        settings |= {"HF_HUB_ETAG_TIMEOUT": "300", "HF_HUB_DOWNLOAD_TIMEOUT": "300", **environment}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
        )

    def decide(
        self, name: str, trust: bool | None = None, environment: dict[str, str] | None = None, **arguments: Any
    ) -> SimpleNamespace:
        """The decision on a name with ``model_init_kwargs`` and the trainer's own ``trust_remote_code``. ``waited`` beside it:
        the seconds between attempts."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"name": name, "trust": trust, "environment": environment or {}, "arguments": arguments}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).startswith("{"):
            assert line, "the process has ended"
        answer = SimpleNamespace(**json.loads(line))
        assert answer.error is None, answer.error
        return answer

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    """Answers questions, one line of JSON each, until there are none."""
    import torch

    from patchwork.packing import decide

    prompts: list[str] = []
    waits: list[float] = []

    def asked(prompt: str = "") -> str:
        prompts.append(prompt)
        return "n"

    builtins.input = asked
    time.sleep = waits.append  # what the Hub's client waits between its attempts is added up, not slept
    for line in sys.stdin:
        question = json.loads(line)
        args = SimpleNamespace(model_init_kwargs=question["arguments"])
        if question["trust"] is not None:
            args.trust_remote_code = question["trust"]
        waits.clear()
        os.environ.update(question["environment"])
        before = copy.deepcopy(question["arguments"]), torch.get_rng_state().tolist()
        answer: dict[str, Any] = {"error": None}
        try:
            answer |= asdict(decide(question["name"], args))
        except Exception:
            answer["error"] = traceback.format_exc()
        for variable in question["environment"]:
            del os.environ[variable]
        if prompts or (args.model_init_kwargs, torch.get_rng_state().tolist()) != before:
            answer["error"] = f"asked {prompts} on the terminal, made {args.model_init_kwargs} of {before[0]}, or drew numbers"
        print(json.dumps({**answer, "waited": sum(waits)}), flush=True)


if __name__ == "__main__":
    main()
