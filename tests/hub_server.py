"""A Hub in the test's own process: dataset repositories with commits and branches, over HTTP,
offline.

As much of the protocol as `huggingface_hub` and `datasets` speak to create, push to, list and read
dataset repositories.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


@dataclass
class Repository:
    """`commits[sha]` are the files at that commit; `branches` name commits; `log` has the commits
    of each branch.
    """

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    log: dict[str, list[str]] = field(
        default_factory=dict
    )  # commit messages per branch, without the initial one

    def __post_init__(self) -> None:
        self.commit("main", {".gitattributes": b""})
        self.log["main"] = []

    def commit(self, branch: str, files: dict[str, bytes], message: str = "initial commit") -> str:
        sha = (
            uuid.uuid4().hex + "0" * 8
        )  # never that of an earlier test, whose files the client has in its cache
        self.commits[sha], self.branches[branch] = files, sha
        self.log.setdefault(branch, []).append(message)
        return sha

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[branch]]


class HubServer:
    """Listens on `url` until `close()`."""

    def __init__(self) -> None:
        self.forget()
        handler = type("BoundHandler", (Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def forget(self) -> None:
        self.repositories: dict[str, Repository] = {}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    """One request; `answer` picks the route."""

    hub: HubServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """Head and body leave at once. In two parts, the second one waits until the client has
    confirmed the first, which takes it forty milliseconds.
    """

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the client went away
            self.close_connection = True

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.read_body()
        return self.send(*self.route(path, body))

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    # -- routes ------------------------------------------------------------------------------------

    def route(self, path: str, body: bytes) -> tuple[int, object, dict[str, str]]:
        name = r"(?P<repo>[^/]+/[^/]+?)"
        routes: dict[str, Callable] = {
            "POST /api/repos/create": self.create,
            "POST /api/validate-yaml": lambda body: (200, {"errors": [], "warnings": []}),
            rf"POST /api/datasets/{name}/branch/(?P<branch>.+)": self.branch,
            rf"POST /api/datasets/{name}/preupload/(?P<revision>[^/]+)": self.preupload,
            rf"POST /api/datasets/{name}/commit/(?P<revision>[^/]+)": self.commit,
            rf"GET /api/datasets/{name}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?": self.tree,
            rf"GET /api/datasets/{name}(/revision/(?P<revision>[^/]+))?": self.info,
            rf"(GET|HEAD) /datasets/{name}/resolve/(?P<revision>[^/]+)/(?P<file>.+)": self.resolve,
        }
        for pattern, function in routes.items():
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                arguments = match.groupdict()
                if "repo" in arguments:
                    repository = self.hub.repositories.get(arguments.pop("repo"))
                    has_token = TOKEN in self.headers.get("Authorization", "")
                    if repository is None or (repository.private and not has_token):
                        return (
                            404,
                            {"error": "Repository not found"},
                            {"X-Error-Code": "RepoNotFound"},
                        )
                    arguments["repository"] = repository
                    revision = arguments.get("revision") or "main"
                    if "revision" in arguments:
                        arguments["revision"] = repository.branches.get(revision, revision)
                        if arguments["revision"] not in repository.commits:
                            return (
                                404,
                                {"error": "Invalid rev id"},
                                {"X-Error-Code": "RevisionNotFound"},
                            )
                    if function == self.commit:
                        arguments["branch"] = revision
                result = function(body, **arguments)
                return (*result, {}) if len(result) == 2 else result
        return 404, {"error": f"no such route: {self.command} {path}"}, {}

    def create(self, body: bytes) -> tuple:
        request = json.loads(body)
        if request["type"] != "dataset":
            return 400, {"error": f"a repository of type {request['type']}"}
        name = f"{request.get('organization') or 'user'}/{request['name']}"
        status = 409 if name in self.hub.repositories else 200
        if status == 200:
            private = request.get("private") or request.get("visibility") == "private"
            self.hub.repositories[name] = Repository(private=bool(private))
        return status, {
            "url": f"{self.hub.url}/datasets/{name}",
            "name": name,
            "error": "exists already",
        }

    def branch(self, body: bytes, repository: Repository, branch: str) -> tuple:
        if branch in repository.branches:
            return 409, {"error": "Reference already exists"}
        repository.branches[branch] = repository.branches["main"]
        repository.log[branch] = list(repository.log["main"])
        return 200, {}

    def preupload(self, body: bytes, repository: Repository, revision: str) -> tuple:
        files = repository.commits[revision]
        paths = [file["path"] for file in json.loads(body)["files"]]
        known = {path: oid(files[path]) if path in files else None for path in paths}
        return 200, {
            "files": [
                {"path": p, "uploadMode": "regular", "shouldIgnore": False, "oid": known[p]}
                for p in paths
            ]
        }

    def commit(self, body: bytes, repository: Repository, revision: str, branch: str) -> tuple:
        files, message = dict(repository.commits[revision]), ""
        for line in body.splitlines():
            key, value = json.loads(line).values()
            if key == "header":
                message = value["summary"]
                if value.get("parentCommit", revision) != revision:
                    return 412, {"error": "A commit has happened since"}
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "deletedFile":
                del files[value["path"]]
        sha = repository.commit(branch, files, message)
        return 200, {
            "success": True,
            "commitOid": sha,
            "commitUrl": f"{self.hub.url}/datasets/user/x/commit/{sha}",
        }

    def info(self, body: bytes, repository: Repository, revision: str) -> tuple:
        name = next(name for name, known in self.hub.repositories.items() if known is repository)
        siblings = [{"rfilename": path} for path in repository.commits[revision]]
        return 200, {
            "id": name,
            "sha": revision,
            "private": repository.private,
            "siblings": siblings,
            "tags": [],
        }

    def tree(self, body: bytes, repository: Repository, revision: str, folder: str | None) -> tuple:
        files, prefix = repository.commits[revision], f"{folder}/" if folder else ""
        below = {path: data for path, data in files.items() if path.startswith(prefix)}
        folders = {path.rpartition("/")[0] for path in below} - {"", folder}
        entries = [
            *map(directory, sorted(folders)),
            *(entry(path, data) for path, data in below.items()),
        ]
        if not re.search(r"recursive=(true|1)", self.path, flags=re.I):
            entries = [found for found in entries if "/" not in found["path"].removeprefix(prefix)]
        return 200, entries

    def resolve(self, body: bytes, repository: Repository, revision: str, file: str) -> tuple:
        files = repository.commits[revision]
        if file not in files:
            return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}
        headers = {
            "X-Repo-Commit": revision,
            "ETag": f'"{oid(files[file])}"',
            "Accept-Ranges": "bytes",
        }
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(wanted[1]), int(wanted[2] or len(files[file]) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(files[file])}"
            return 206, files[file][start : end + 1], headers
        return 200, files[file], headers


def oid(data: bytes) -> str:
    """As git names contents."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(path: str, data: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(data), "oid": oid(data)}


def directory(path: str) -> dict:
    return {"type": "directory", "path": path, "oid": "0" * 40}
