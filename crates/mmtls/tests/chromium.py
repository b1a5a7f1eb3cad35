"""Drives Chromium over its debugging pipe: no port, no further library.

Usage: chromium.py PROFILE < STEPS

STEPS is a list in JSON: {"open": URL}, {"view": [WIDTH, HEIGHT, SCHEME]}, {"wait": EXPRESSION}, {"eval": EXPRESSION}, {"shot": FILE} (of the
whole page). Prints an object: "values" (one for each "eval"), "faults" (what the console said, and what was thrown).
Refuses to go on where an expression does not become true within 30 seconds.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import time

LIMIT = 30
# For all steps, whatever a browser does that is there and does not answer.
LIMIT_OF_ALL = 180

to_browser, ours_out = os.pipe()
ours_in, from_browser = os.pipe()


def take_their_places():
    # Chromium reads descriptor 3 and writes 4.
    first, second = os.dup(to_browser), os.dup(from_browser)
    os.dup2(first, 3)
    os.dup2(second, 4)


def start(profile):
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-dev-shm-usage", "--disable-extensions"]
    command += ["--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={profile}"]
    command += ["--remote-debugging-pipe", "about:blank"]
    environment = dict(os.environ, HOME=profile, TZ="UTC")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdout=quiet, stderr=quiet, close_fds=False, preexec_fn=take_their_places, env=environment
    )
    # So that reading ends when the browser does.
    os.close(to_browser)
    os.close(from_browser)
    return process


def give_up(*_):
    sys.exit(f"chromium takes longer than {LIMIT_OF_ALL} seconds")


class Browser:
    def __init__(self):
        self.number, self.buffer, self.faults, self.session = 0, b"", [], None

    def receive(self):
        while b"\0" not in self.buffer:
            more = os.read(ours_in, 1 << 20)
            if not more:
                sys.exit("chromium is gone")
            self.buffer += more
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(ours_out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        name, parameters = event.get("method"), event.get("params", {})
        if name == "Log.entryAdded":
            self.faults.append(parameters["entry"]["text"])
        elif name == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))

    def evaluate(self, expression, may_throw=False):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            if not may_throw:
                sys.exit(f"{expression}: {result['exceptionDetails']}")
            return None
        return result["result"].get("value")

    def do(self, step):
        if "open" in step:
            self.call("Page.navigate", url=step["open"])
        elif "view" in step:
            width, height, scheme = step["view"]
            self.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
            )
            self.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
        elif "wait" in step:
            end = time.monotonic() + LIMIT
            # A page that is being loaded lacks what is asked for.
            while not self.evaluate(step["wait"], may_throw=True):
                if time.monotonic() > end:
                    text = self.evaluate("document.body.innerText")
                    sys.exit(f"never true: {step['wait']}\n{self.faults}\n{text}")
                time.sleep(0.1)
        elif "shot" in step:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
            shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            with open(step["shot"], "wb") as file:
                file.write(base64.b64decode(shot["data"]))


def main():
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_OF_ALL)
    browser, process = Browser(), start(sys.argv[1])
    try:
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log"]:
            browser.call(f"{domain}.enable")
        values = []
        for step in json.load(sys.stdin):
            if "eval" in step:
                values.append(browser.evaluate(step["eval"]))
            else:
                browser.do(step)
        print(json.dumps({"values": values, "faults": browser.faults}))
    finally:
        process.kill()
        process.wait()


main()
