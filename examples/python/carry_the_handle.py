"""A handle is plain JSON: here it is carried over HTTP.

The tensor stays where it is; whoever opens the handle on this machine has the same memory.
"""

import http.server
import json
import subprocess
import sys
import threading
import urllib.request

import baton
import numpy as np


def over_http(x):
    """Serves the handle; another process fetches it and writes the tensor."""

    class Serve(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = x.handle(lease=30).to_json().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        subprocess.run([sys.executable, __file__, "fetch", url], check=True)
        server.shutdown()


def fetch(url):
    with urllib.request.urlopen(url) as answer:
        baton.open(answer.read().decode()).numpy()[:] += 1


def main():
    x = baton.share(np.zeros(4))
    over_http(x)
    print("over HTTP:", x.numpy().tolist())
    print(json.loads(x.handle().to_json())["dtype"])


if __name__ == "__main__":
    fetch(sys.argv[2]) if sys.argv[1:2] == ["fetch"] else main()
