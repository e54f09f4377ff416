"""What TensorBoard reads in a folder of runs: {reader: {run: {tag: [[step, value], ...]}}}, as JSON.

usage: read_by_tensorboard.py FOLDER SCALARS. The readers are its own event accumulator, and its web server as users start it,
which is asked until it has read so many scalars.

usage: read_by_tensorboard.py FOLDER histograms. {run: {tag: [[step, [[left, right, count], ...]], ...]}} of what its server draws.
"""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from tensorboard.backend.event_processing import event_multiplexer, plugin_event_multiplexer
from tensorboard.util import tensor_util

folder = sys.argv[1]


def histograms():
    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"histograms": 0})
    multiplexer.AddRunsFromDirectory(folder).Reload()
    return {
        run: {
            tag: [[event.step, tensor_util.make_ndarray(event.tensor_proto).tolist()] for event in multiplexer.Tensors(run, tag)]
            for tag in multiplexer.PluginRunToTagToContent("histograms").get(run, {})
        }
        for run in multiplexer.Runs()
    }


if sys.argv[2] == "histograms":
    print(json.dumps(histograms()))
    sys.exit()
wanted = int(sys.argv[2])


def text(value):
    """NaN and infinities have no JSON."""
    return repr(float(value))


def accumulated():
    multiplexer = event_multiplexer.EventMultiplexer(size_guidance={"scalars": 0})
    multiplexer.AddRunsFromDirectory(folder).Reload()
    return {
        run: {
            tag: [[event.step, text(event.value)] for event in multiplexer.Scalars(run, tag)]
            for tag in content["scalars"]
        }
        for run, content in multiplexer.Runs().items()
    }


def get(address, path, **query):
    url = f"{address}data/plugin/scalars/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def served():
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", "0"]
    command += ["--host", "127.0.0.1", "--samples_per_plugin", "scalars=1000000"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"at (http://\S+)", line):
                break
        address, deadline = found.group(1), time.time() + 60
        while True:
            # The server answers before it has read everything.
            all_ = {
                run: {
                    tag: [[step, text(value)] for _, step, value in get(address, "scalars", run=run, tag=tag)]
                    for tag in tags
                }
                for run, tags in get(address, "tags").items()
            }
            if sum(len(tag) for run in all_.values() for tag in run.values()) == wanted or time.time() > deadline:
                return all_
            time.sleep(0.5)
    finally:
        server.terminate()
        server.wait()


print(json.dumps({"accumulator": accumulated(), "server": served()}))
