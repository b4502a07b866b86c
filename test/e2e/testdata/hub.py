"""A hub of models as Hugging Face's clients know it, with one repository: python3 hub.py ADDRESS PORT LOG.

lab/tiny has a small file, which the hub gives itself, and a large one, which it has
elsewhere under a signed address; lab/gated has the same for who shows a token.
"""

import hashlib
import http.server
import json
import sys

COMMIT = "c" * 40
SMALL = b'{"layers": 2}'
LARGE = bytes(range(256)) * (16 << 10)
SUM = hashlib.sha256(LARGE).hexdigest()
TREE = [
    {"type": "file", "path": "config.json", "oid": "a" * 40, "size": len(SMALL)},
    {
        "type": "file",
        "path": "model.safetensors",
        "oid": "b" * 40,
        "size": len(LARGE),
        "lfs": {"oid": SUM, "size": len(LARGE), "pointerSize": 134},
        "xetHash": "e" * 64,
    },
]


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        with open(sys.argv[3], "a", encoding="utf-8") as log:
            print(self.command, self.path, self.headers.get("Authorization", "-"), file=log)
        path, _, query = self.path.partition("?")
        if "gated" in path and self.headers.get("Authorization") != "Bearer hf_allowed":
            self.answer(401, b"Access is restricted.", X_Error_Code="GatedRepo", X_Error_Message="Access to this model is restricted.")
        elif path.startswith("/api/models/") and "/tree/" in path and "cursor" not in query:
            more = f'<http://{sys.argv[1]}:{sys.argv[2]}{path}?cursor=2>; rel="next"'
            self.answer(200, json.dumps(TREE[:1]).encode(), Content_Type="application/json", Link=more)
        elif path.startswith("/api/models/") and "/tree/" in path:
            self.answer(200, json.dumps(TREE[1:]).encode(), Content_Type="application/json")
        elif path.startswith("/api/models/"):
            name = "/".join(path.split("/")[3:5])
            about = {"id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0,
                     "siblings": [{"rfilename": f["path"]} for f in TREE]}
            self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
        elif path.endswith("/config.json"):
            self.answer(200, SMALL, ETag='"' + "a" * 40 + '"')
        elif path.endswith("/model.safetensors"):
            self.answer(302, b"Found", Location="/blob?Signature=s3cret", X_Linked_Etag=f'"{SUM}"', X_Linked_Size=str(len(LARGE)), X_Xet_Hash="e" * 64)
        elif path == "/blob" and query == "Signature=s3cret":
            self.answer(200, LARGE, Content_Type="application/octet-stream")
        else:
            self.answer(404, b"There is none.")

    do_HEAD = do_GET


http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Hub).serve_forever()
