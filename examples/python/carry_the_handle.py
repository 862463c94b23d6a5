"""A handle is plain JSON: here it is carried over HTTP and over NATS.

The tensor stays where it is; a process that opens the handle on this machine has the same memory. It needs nats-py[nkeys].
`baton run -- python carry_the_handle.py` gives it a broker with NATS for as long as it runs.
"""

import asyncio
import http.server
import json
import subprocess
import sys
import threading
import urllib.request

import baton
import nats
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


def where_nats_is():
    """How to connect to the broker's NATS, as `baton nats` says it."""
    told = subprocess.run([sys.executable, "-m", "baton", "nats", "--json"], check=True, capture_output=True)
    told = json.loads(told.stdout)
    return {"servers": told["url"], "nkeys_seed": told.get("seed")}


async def subscribed(client):
    """Waits until the server knows what was subscribed, which the ping of the first flush overtakes."""
    await client.flush()
    await client.flush()


async def over_nats(x, where):
    """Asks for the handle on a subject of our own, and writes the tensor."""
    server, client = await nats.connect(**where), await nats.connect(**where)

    async def answer(request):
        await request.respond(x.handle(lease=30).to_json().encode())

    await server.subscribe("pictures.newest", cb=answer)
    await subscribed(server)
    reply = await client.request("pictures.newest", timeout=30)
    baton.open(reply.data.decode()).numpy()[:] += 1
    await server.close()
    await client.close()


async def of_a_topic(x, where):
    """Sees the messages of a topic as NATS has them, and opens a tensor of one."""
    client = await nats.connect(**where)
    seen = await client.subscribe("baton.default.topic.examples.carried")
    await subscribed(client)
    topic = baton.topic("examples/carried")
    topic.send({"x": x}, meta={"step": 7})
    message = json.loads((await seen.next_msg(timeout=30)).data)
    tensor = baton.open(json.dumps(message["tensors"][0]["handle"]))
    await client.close()
    return message["meta"], tensor


def main():
    x = baton.share(np.zeros(4))
    over_http(x)
    print("over HTTP:", x.numpy().tolist())
    where = where_nats_is()
    asyncio.run(over_nats(x, where))
    print("over NATS:", x.numpy().tolist())
    meta, same = asyncio.run(of_a_topic(x, where))
    x.numpy()[0] = 9
    print("of a topic:", meta, same.numpy().tolist())


if __name__ == "__main__":
    fetch(sys.argv[2]) if sys.argv[1:2] == ["fetch"] else main()
