#!/usr/bin/env python3
"""Their own readers read what observers of a run write, serve and send.

    observers_peer.py PROGRAM WORK PROMTOOL

TensorBoard's classes: every number is that of --metrics-jsonl, of two steps with one number that of the later
one; the flags of the run and how it ended are what the plugin of hyperparameters reads. Both parsers of Prometheus's
client, and promtool. OpenTelemetry's classes, which take no field that they do not know, once ids are in base64 as
protobuf has them. Servers of TLS are believed by the file of certificates that is named, and by no other; proxies
are used.
"""

import base64
import contextlib
import http.server
import itertools
import json
import math
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import trustme
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2

OF_STEPS = {"lm loss": "loss", "learning-rate": "lr", "grad-norm": "grad_norm", "tokens-per-second": "tokens_per_s",
            "memory-bytes": "memory"}


def train(program, work, steps, *more, logs="logs", check=0, env=None):
    done = subprocess.run([program, "train", "--data-path", "text", "--tokenizer-type", "byte", "--train-iters", steps,
                           "--lr-decay-iters", "40", "--eval-interval", "10", "--eval-iters", "1", "--save", f"states of {logs}",
                           "--save-interval", "10", "--tensorboard-dir", logs, *more],
                          cwd=work, capture_output=True, text=True, env=env)
    assert done.returncode == check, done.stdout + done.stderr
    return done


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def read(work, logs="logs"):
    board = event_accumulator.EventAccumulator(str(work / logs), size_guidance={event_accumulator.SCALARS: 0})
    board.Reload()
    return board


def last_of(board, tag):
    """The last value of each step, as TensorBoard shows them: later ones count."""
    return {v.step: v.value for v in board.Scalars(tag)}


def plugin(board, which):
    content = board.SummaryMetadata(f"_hparams_/{which}").plugin_data.content
    return getattr(plugin_data_pb2.HParamsPluginData.FromString(content), which)


def check_tensorboard(program, work):
    # Steps 11 to 15 are taken twice: the state behind step 15 is lost.
    train(program, work, "15", "--metrics-jsonl", "first.jsonl")
    newest = work / "states of logs/latest_checkpointed_iteration.txt"
    (work / "states of logs/iter_0000015").rename(work / "lost")
    newest.write_text("10")
    train(program, work, "30", "--load", "states of logs", "--metrics-jsonl", "second.jsonl")
    board, steps, evaluations = read(work), {}, {}
    for name in ("first.jsonl", "second.jsonl"):
        for line in map(json.loads, (work / name).read_text().splitlines()):
            (steps if "loss" in line else evaluations)[line["step"]] = line
    assert sorted(steps) == list(range(1, 31)) and sorted(evaluations) == [10, 15, 20, 30], (steps, evaluations)
    for tag, field in OF_STEPS.items():
        assert last_of(board, tag) == {n: single(line[field]) for n, line in steps.items()}, tag
    batch = int(board.Scalars("batch-size")[0].value)
    assert last_of(board, "lm loss vs samples") == {n * batch: single(line["loss"]) for n, line in steps.items()}
    losses = {n: single(line["validation_loss"]) for n, line in evaluations.items()}
    assert last_of(board, "lm loss validation") == losses, (losses, board.Scalars("lm loss validation"))
    for step, value in last_of(board, "lm loss validation ppl").items():
        assert math.isclose(value, evaluations[step]["perplexity"], rel_tol=1e-6), step
    flags = {name: v for name, v in plugin(board, "session_start_info").hparams.items()}
    assert flags["train-iters"].number_value == 15 and flags["lr-decay-style"].string_value == "linear"
    known = {info.name for info in plugin(board, "experiment").hparam_infos}
    assert known == set(flags), known ^ set(flags)
    assert plugin(board, "session_end_info").status == 1
    # A run that an error ends.
    train(program, work, "40", "--lr", "1e30", "--clip-grad", "0", logs="failed", check=7)
    assert plugin(read(work, "failed"), "session_end_info").status == 2
    print(f"TensorBoard reads {sum(len(board.Scalars(t)) for t in board.Tags()['scalars'])} numbers under "
          f"{len(board.Tags()['scalars'])} names")


def check_prometheus(program, work, promtool):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    run = subprocess.Popen([program, "train", "--data-path", "text", "--tokenizer-type", "byte", "--train-iters", "1000000000",
                            "--eval-interval", "50", "--eval-iters", "1", "--ranks", "2", "--peak-tflops", "100",
                            "--metrics-port", str(port)], cwd=work, stdout=subprocess.DEVNULL)
    try:
        page, end = "", time.monotonic() + 120
        while "megacpp_evaluation_loss{" not in page:
            assert time.monotonic() < end and run.poll() is None
            time.sleep(0.05)
            with contextlib.suppress(OSError):
                answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
                assert answer.headers["Content-Type"].startswith("text/plain"), answer.headers
                page = answer.read().decode()
    finally:
        run.kill()
        run.wait()
    families = {f.name: f for f in text_string_to_metric_families(page)}
    for name, kind in (("loss", "gauge"), ("mfu_ratio", "gauge"), ("slowest_rank", "gauge"), ("tokens", "counter"),
                       ("step_seconds", "histogram"), ("data_seconds", "counter")):
        family = families[f"megacpp_{name}"]
        assert family.type == kind and family.documentation.endswith("."), family
    buckets = [s for s in families["megacpp_step_seconds"].samples if s.name.endswith("_bucket")]
    assert [b.value for b in buckets] == sorted(b.value for b in buckets) and buckets[-1].labels["le"] == "+Inf"
    # prometheus-cpp writes the older text alone. In OpenMetrics, whose parser is strict on names, labels, buckets and
    # their order, a counter's family is called without _total, and the page has an end.
    open_page = re.sub(r"^(# (?:TYPE|HELP) \S+)_total(?= )", r"\1", page, flags=re.MULTILINE) + "# EOF\n"
    strictly = {f.name: f for f in openmetrics_families(open_page)}
    assert {name: sorted((s.name, *sorted(s.labels.items()), s.value) for s in f.samples) for name, f in strictly.items()} == {
        name: sorted((s.name, *sorted(s.labels.items()), s.value) for s in f.samples) for name, f in families.items()}
    done = subprocess.run([promtool, "check", "metrics"], input=page, text=True, capture_output=True)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    print(f"Prometheus's client and promtool read {len(families)} families")


class Server:
    """A server that keeps what is posted to it: by TLS, or a proxy of HTTP."""

    def __init__(self, context=None):
        self.posts = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):  # noqa: N802, N805
                text = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.posts.append((handler.path, dict(handler.headers), json.loads(text)))
                handler.send_response(207)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *_):  # noqa: N805
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()


def check_traces(program, work):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(work / "ca.pem")
    trustme.CA().cert_pem.write_to_path(work / "other.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    server, proxy = Server(context), Server()
    (work / "token").write_text("a token")
    langfuse = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "no_proxy": "*",
                "LANGFUSE_HOST": f"https://localhost:{server.port}"}

    def told(env, number=itertools.count()):
        return train(program, work, "12", logs=f"of traces {next(number)}", env={**os.environ, **env}).stdout
    told({**langfuse, "SSL_CERT_FILE": str(work / "ca.pem")})
    assert server.posts and {p[0] for p in server.posts} == {"/api/public/otel/v1/traces"}
    spans = 0
    for _, headers, text in server.posts:
        assert headers["Authorization"] == "Basic " + base64.b64encode(b"pk:sk").decode()
        assert headers["x-langfuse-ingestion-version"] == "4"
        as_protobuf = re.sub(r'"(traceId|spanId|parentSpanId)": "([0-9a-f]+)"', lambda m: '"{}": "{}"'.format(
            m[1], base64.b64encode(bytes.fromhex(m[2])).decode()), json.dumps(text))
        request = json_format.Parse(as_protobuf, ExportTraceServiceRequest())  # no unknown field
        for of in request.resource_spans:
            for span in of.scope_spans[0].spans:
                spans += 1
                assert len(span.trace_id) == 16 and len(span.span_id) == 8 and len(span.parent_span_id) in (0, 8)
                assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    # Who is not believed gets nothing.
    count = len(server.posts)
    for bad in ({"SSL_CERT_FILE": str(work / "other.pem")}, {"SSL_CERT_FILE": str(work / "none")},
                {"SSL_CERT_FILE": str(work / "ca.pem"), "LANGFUSE_HOST": f"https://127.0.0.1:{server.port}"}):
        says = told({**langfuse, **bad})
        assert len(re.findall(r"/v1/traces cannot be reached: .*; the run goes on", says)) == 1, says
    assert len(server.posts) == count
    status = {"KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{server.port}/status", "no_proxy": "*",
              "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(work / "ca.pem"),
              "KUBEFLOW_TRAINER_SERVER_TOKEN": str(work / "token")}
    told(status)
    path, headers, _ = server.posts[-1]
    assert (path, headers["Authorization"]) == ("/status", "Bearer a token")
    told({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid:4318", "no_proxy": "", "NO_PROXY": "",
          "http_proxy": f"http://127.0.0.1:{proxy.port}"})
    assert {p[0] for p in proxy.posts} == {"http://collector.invalid:4318/v1/traces"}
    print(f"OpenTelemetry's classes read {spans} spans")


def main():
    if len(sys.argv) != 4:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    program, work = sys.argv[1], Path(sys.argv[2])
    (work / "text").write_text("".join(f"{n} words of a text\n" for n in range(2000)))
    check_tensorboard(program, work)
    check_prometheus(program, work, sys.argv[3])
    check_traces(program, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
