"""Open consoles on a large cluster: what they cost the service. Asserts no seconds.

    python benchmarks/bench_consoles.py [--apps 1000] [--gpus 10000] [--consoles 50] [--seconds 60] [--chromium PATH]

Consoles are plain sockets that follow the page Now, in a process of their own. While they do, GPUs fall free twice a second and the
policy decides on them; the same time without consoles comes first, so that the difference is theirs. The executor does nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bench_calls import TOKEN, request
from bench_service import ME, _let_go, arbiter, memory_mb
from themis.service.api.access import Access
from themis.service.api.http_server import serve_http
from themis.service.api.methods import Api
from themis.service.api.submission import submit
from themis.service.web.console import Console
from themis.service.web.routes import ROUTES


def sign_in(port: int) -> str:
    """The cookie of a new session."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/console/sign-in", urlencode({"token": TOKEN}), kind)
    answer = connection.getresponse()
    assert answer.status == 303, answer.read()
    return answer.getheader("Set-Cookie", "").split(";")[0]


def page(port: int, cookie: str) -> tuple[int, float]:
    """Bytes of the page Now with its files, and seconds until the page was there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(path: str) -> bytes:
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, (path, answer.status)
        return data

    began = time.perf_counter()
    text = get("/console/now")
    took = time.perf_counter() - began
    files = {part.split('"')[0] for part in text.decode().split('="')[1:] if part.startswith("/console/static/")}
    return len(text) + sum(len(get(path)) for path in sorted(files)), took


def follow(port: int, consoles: int, seconds: float) -> None:
    """Follow from many sockets; writes what arrived as JSON."""
    cookie, sockets = sign_in(port), []
    for _ in range(consoles):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(f"GET /console/now/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n".encode())
        sockets.append(one)
    got, events, end = dict.fromkeys(sockets, 0), 0, time.monotonic() + seconds
    first: dict[socket.socket, int] = {}
    while time.monotonic() < end:
        for one in select.select(sockets, [], [], 0.5)[0]:
            data = one.recv(1 << 20)
            assert data, "a stream ended"
            got[one] += len(data)
            events += data.count(b"event: ")
            if b"event: change" in data:
                first.setdefault(one, got[one])
    print(
        json.dumps(
            {
                "bytes": sum(got.values()),
                "least": min(got.values()),
                "events": events,
                "whole": min(first.values(), default=0),
            }
        )
    )


def first_paints(port: int, chromium: str, times: int = 5) -> list[float]:
    """Seconds from the request of Now to the first paint, in a browser."""
    from playwright.sync_api import sync_playwright

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url("**/console/now")
        out = []
        for _ in range(times):
            page.reload()
            page.wait_for_timeout(1000)
            paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            out.append(float(paint) / 1000)
        browser.close()
    return out


def measure(apps: int, gpus: int, consoles: int, seconds: float, chromium: str) -> None:
    with arbiter(gpus // 8, apart=True, max_apps=10**6, max_apps_per_user=10**6) as a:
        for n in range(apps):
            a.ask(lambda n=n: submit(a, request(n, "a"), ME))
        api = Api(a, Path(tempfile.mkdtemp()), Access(Path(tempfile.mkdtemp()), TOKEN, "me"))
        console = Console(api, ROUTES)
        web = serve_http(api, "127.0.0.1", 0, site=console)
        end = threading.Event()
        churn = threading.Thread(target=_churn, args=(a, end), daemon=True)
        churn.start()
        time.sleep(5.0)
        began = time.process_time()
        time.sleep(seconds)
        without = (time.process_time() - began) / seconds
        cookie = sign_in(web.port)
        weight, cold = page(web.port, cookie)
        warm = statistics.median(page(web.port, cookie)[1] for _ in range(9))
        began, looks, wall = time.process_time(), console.live.looks, time.perf_counter()
        command = [sys.executable, __file__, "--follow", str(web.port)]
        command += ["--consoles", str(consoles), "--seconds", str(seconds)]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        passed = time.perf_counter() - wall
        with_them = (time.process_time() - began) / passed
        looks = console.live.looks - looks
        end.set()
        churn.join()
        print(
            f"\n{apps} apps of 4 jobs of 3 GPUs, {gpus} GPUs; {consoles} consoles for {passed:.0f} s; {memory_mb():.0f} MB\n"
        )
        print("| figure | value |\n|---|---|")
        print(f"| the service's CPU without consoles, of a core | {without:.1%} |")
        print(f"| with {consoles} consoles | {with_them:.1%} |")
        print(f"| difference | {with_them - without:.1%} |")
        print(f"| the arbiter's thread for one look, CPU ms | {1000 * console.live.cost_s:.0f} |")
        print(
            f"| looks, and what they took of the arbiter's thread | {looks}, {looks * console.live.cost_s / passed:.1%} |"
        )
        print(f"| page with style and scripts, kB | {weight / 1000:.0f} |")
        print(f"| seconds until the page was there: the first time, and median of 9 | {cold:.2f}, {warm:.3f} |")
        if chromium:
            paints = first_paints(web.port, chromium)
            print(
                f"| first paint in Chromium, s: median and worst of 5 | {statistics.median(paints):.2f}, {max(paints):.2f} |"
            )
        print(f"| received by all consoles, MB | {found['bytes'] / 1e6:.1f} |")
        print(f"| least of one console, kB | {found['least'] / 1000:.0f} |")
        print(f"| events of all consoles | {found['events']} |")
        api.ending.set()
        web.close()


def _churn(a: Any, end: threading.Event) -> None:
    while not end.wait(0.5):
        _let_go(a, 2)


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--apps", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--consoles", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--chromium", default="", help="path of a Chromium, to measure the first paint")
    parser.add_argument("--follow", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.follow:
        follow(given.follow, given.consoles, given.seconds)
    else:
        measure(given.apps, given.gpus, given.consoles, given.seconds, given.chromium)


if __name__ == "__main__":
    main()
