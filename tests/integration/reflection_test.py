"""Talks to sandlotd through reflection only, as any language could: the main job, typed errors,
health, and what an unknown method answers. usage: reflection_test.py BUILD_DIR"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from reflection_client import Broker, parse, reflect, field  # noqa: E402

BUILD = sys.argv.pop(1) if len(sys.argv) > 1 else "build"


class ReflectionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp(prefix="sandlot-test-")
        cls.socket = "unix:" + cls.dir + "/s"
        cls.port = 20000 + os.getpid() % 20000
        ready, write = os.pipe()
        os.set_inheritable(write, True)
        cls.log = open(cls.dir + "/log", "w")
        cls.broker = subprocess.Popen(
            [BUILD + "/sandlotd", "--listen", cls.socket, "--listen", "127.0.0.1:%d,insecure" % cls.port,
             "--state-dir", cls.dir + "/state", "--on-shutdown", "destroy", "--ready-fd", str(write)],
            pass_fds=[write], stdout=cls.log, stderr=cls.log)
        os.close(write)
        if os.read(ready, 6) != b"READY\n":
            raise RuntimeError(open(cls.dir + "/log").read())
        os.close(ready)
        cls.api = Broker(cls.socket)

    @classmethod
    def tearDownClass(cls):
        broker_id = cls.api.call("BrokerService/GetBrokerInfo").broker_id
        cls.api.channel.close()
        cls.broker.send_signal(signal.SIGTERM)
        code = cls.broker.wait(60)
        cls.log.close()
        with open(cls.dir + "/log") as log:
            text = log.read()
        left = os.listdir(cls.dir + "/state/sandboxes")
        shutil.rmtree(cls.dir)
        assert code == 0, text
        assert not left, left
        assert not glob.glob("/sys/fs/cgroup/**/*" + broker_id, recursive=True)
        for word in ("AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error"):
            assert word not in text, text

    def fails(self, code, reason, method, **fields):
        with self.assertRaises(grpc.RpcError) as caught:
            self.api.call(method, **fields)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        details = dict(caught.exception.trailing_metadata())["grpc-status-details-bin"]
        status = parse(details)
        info = parse(parse(status[3][0])[2][0])
        self.assertEqual(info[1][0].decode(), reason)
        self.assertEqual(info[2][0], b"sandlot")
        return caught.exception, [parse(entry) for entry in status[3]]

    def test_services_are_listed_by_both_versions(self):
        for version in ("v1", "v1alpha"):
            names = Broker(self.socket, version).services
            for name in ("SandboxService", "LeaseService", "ExecService", "FileService", "BrokerService"):
                self.assertIn("sandlot.v1." + name, names)
            self.assertIn("grpc.health.v1.Health", names)
        unknown = reflect(self.api.channel, "v1", field(4, "no.such.Symbol"))
        self.assertEqual(parse(unknown[7][0])[1][0], 5)

    def test_the_main_job(self):
        created = self.api.call("SandboxService/CreateSandbox", files=[{"path": b"in", "content": b"data\n"}],
                                env={"GREETING": "hello"}, ports=[8080], labels={"team": "x"})
        owner = json.loads(created.descriptor_json)
        self.assertEqual(owner["version"], 1)
        self.assertEqual(owner["ports"], [8080])
        self.assertEqual(set(owner), {"version", "broker_id", "endpoints", "sandbox_id", "provider", "scope", "lease",
                                      "workdir", "ports", "expire_time", "rollout_id"})
        self.assertLess(len(owner["lease"]), 512)
        lent = json.loads(self.api.call("LeaseService/Serialize", lease=owner["lease"]).descriptor_json)
        mine = json.loads(self.api.call("LeaseService/Connect", lease=lent["lease"], holder="py").descriptor_json)
        self.assertEqual(mine["scope"], "operate")
        ran = self.api.call("ExecService/Exec", lease=mine["lease"], shell=b"echo $GREETING; cat in")
        self.assertEqual(ran.stdout, b"hello\ndata\n")
        self.assertEqual(ran.exit_code, 0)
        self.fails(grpc.StatusCode.PERMISSION_DENIED, "SCOPE_INSUFFICIENT", "SandboxService/DestroySandbox",
                   lease=mine["lease"])
        self.assertEqual(self.api.call("LeaseService/Release", lease=mine["lease"]).live_leases, 2)
        self.api.call("SandboxService/DestroySandbox", lease=owner["lease"])
        self.fails(grpc.StatusCode.NOT_FOUND, "SANDBOX_NOT_FOUND", "SandboxService/GetSandbox", lease=owner["lease"])

    def test_files_stream_both_ways(self):
        created = self.api.call("SandboxService/CreateSandbox")
        lease = [("sandlot-lease", json.loads(created.descriptor_json)["lease"])]
        request = self.api.message("sandlot.v1.UploadRequest")
        reply = self.api.message("sandlot.v1.UploadResponse")
        body = os.urandom(3 * 1024 * 1024 + 17)
        upload = self.api.channel.stream_unary("/sandlot.v1.FileService/Upload",
                                               request_serializer=lambda m: m.SerializeToString(),
                                               response_deserializer=reply.FromString)

        def messages():
            yield request(target={"path": "ümlaut name".encode(), "size": len(body)})
            for at in range(0, len(body), 1 << 18):
                yield request(chunk=body[at:at + (1 << 18)])

        self.assertEqual(upload(messages(), metadata=lease, timeout=60).size, len(body))
        download = self.api.channel.unary_stream(
            "/sandlot.v1.FileService/Download", request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=self.api.message("sandlot.v1.DownloadResponse").FromString)
        got = list(download(self.api.message("sandlot.v1.DownloadRequest")(path="ümlaut name".encode()),
                            metadata=lease, timeout=60))
        self.assertEqual(got[0].info.size, len(body))
        self.assertEqual(b"".join(part.chunk for part in got[1:]), body)

        def wrong_size():
            yield request(target={"path": b"short", "size": 10})
            yield request(chunk=b"12345")

        with self.assertRaises(grpc.RpcError) as caught:
            upload(wrong_size(), metadata=lease, timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

        def chunk_first():
            yield request(chunk=b"12345")

        with self.assertRaises(grpc.RpcError) as caught:
            upload(chunk_first(), metadata=lease, timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.api.call("SandboxService/DestroySandbox", lease=lease[0][1])

    def test_order_of_refusals(self):
        created = self.api.call("SandboxService/CreateSandbox")
        token = json.loads(created.descriptor_json)["lease"]
        unauthenticated = grpc.StatusCode.UNAUTHENTICATED
        self.fails(unauthenticated, "LEASE_MISSING", "SandboxService/GetSandbox")
        for bad in ("x", "sl1.k1.AAAA.AAAA", token[:-1] + ("A" if token[-1] != "A" else "B"), token + "A",
                    token.replace("k1", "k2"), "sl1..."):
            self.fails(unauthenticated, "LEASE_INVALID", "SandboxService/GetSandbox", lease=bad)
        self.fails(grpc.StatusCode.NOT_FOUND, "SANDBOX_NOT_FOUND", "SandboxService/GetSandbox", lease=token,
                   sandbox_id="sb-0000000000000000")
        # An unread request never matters: the lease is judged first.
        self.fails(unauthenticated, "LEASE_INVALID", "ExecService/Exec", lease="sl1.a.b.c", shell=b"x" * (3 << 20))
        metadata = [("sandlot-lease", token), ("sandlot-rollout", "another")]
        get = self.api.channel.unary_unary("/sandlot.v1.SandboxService/GetSandbox", request_serializer=bytes,
                                           response_deserializer=bytes)
        for rollout in ("another", ""):
            with self.assertRaises(grpc.RpcError) as caught:
                get(b"", metadata=[metadata[0], ("sandlot-rollout", rollout)], timeout=10)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        get(b"", metadata=[metadata[0], ("sandlot-rollout", created.sandbox.rollout_id)], timeout=10)
        self.api.call("SandboxService/DestroySandbox", lease=token)

    def test_bad_requests_name_their_fields(self):
        error, details = self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/CreateSandbox",
                                    workdir="relative", ports=[0, 70000], env={"A=B": "x"},
                                    resources={"cpu": float("nan"), "memory_bytes": 1 << 54})
        violations = parse(details[1][2][0])[1]
        fields = {parse(entry)[1][0].decode() for entry in violations}
        self.assertLessEqual({"workdir", "resources.memory_bytes", "resources.cpu"}, fields | {"ports"})
        for ttl in ({"seconds": 0}, {"seconds": -5}, {"seconds": 1, "nanos": -1}, {"seconds": 1 << 54}):
            self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/CreateSandbox", ttl=ttl)
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/ListSandboxes", page_size=5000)
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/ListSandboxes",
                   page_token="nonsense")
        raw = self.api.channel.unary_unary("/sandlot.v1.SandboxService/CreateSandbox", request_serializer=bytes,
                                           response_deserializer=bytes)
        nested = b""
        for _ in range(40):
            nested = b"\x0a" + bytes([len(nested)]) + nested if len(nested) < 120 else nested
        for body in (b"\xff", b"\x0a\x05ab", b"\x1a\x02\xff\xfe", b"\x1a\x03a\x00b", b"\x0b"):
            with self.assertRaises(grpc.RpcError) as caught:
                raw(body, timeout=10)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, body)

    def test_unknown_methods_answer_at_once(self):
        for path in ("/sandlot.v1.SandboxService/NoSuch", "/no.such.Service/Method", "/x"):
            call = self.api.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
            before = time.time()
            with self.assertRaises(grpc.RpcError) as caught:
                call(b"", timeout=20)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            self.assertLess(time.time() - before, 10)

    def test_nonsense_to_reflection_is_refused(self):
        for version in ("v1", "v1alpha"):
            call = self.api.channel.stream_stream("/grpc.reflection.%s.ServerReflection/ServerReflectionInfo" % version,
                                                  request_serializer=bytes, response_deserializer=bytes)
            with self.assertRaises(grpc.RpcError) as caught:
                list(call(iter([b"\xff\xff\xff"]), timeout=10))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_lease_revoked_while_the_request_is_on_its_way(self):
        created = self.api.call("SandboxService/CreateSandbox")
        owner = json.loads(created.descriptor_json)["lease"]
        lent = json.loads(self.api.call("LeaseService/Serialize", lease=owner, scope=3).descriptor_json)["lease"]
        connected = self.api.call("LeaseService/Connect", lease=lent)
        second = json.loads(connected.descriptor_json)["lease"]
        send = threading.Event()

        def late_request():
            send.wait(20)
            yield b""

        destroy = self.api.channel.stream_unary("/sandlot.v1.SandboxService/DestroySandbox", request_serializer=bytes,
                                                response_deserializer=bytes)
        future = destroy.future(late_request(), metadata=[("sandlot-lease", second)], timeout=30)
        time.sleep(0.2)  # the headers are there; nothing depends on it but what is tested
        self.api.call("LeaseService/RevokeLease", lease=owner, lease_id=connected.lease.id)
        send.set()
        self.assertEqual(future.code(), grpc.StatusCode.UNAUTHENTICATED)
        self.assertEqual(self.api.call("SandboxService/GetSandbox", lease=owner).sandbox.state, 2)
        self.api.call("SandboxService/DestroySandbox", lease=owner)

    def test_times_that_overflow_are_refused(self):
        for seconds in (-9223372036854786, 9223372036854775807, -1, 0):
            self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/CreateSandbox",
                       expire_time={"seconds": seconds})

    def test_sizes_are_bounded(self):
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/CreateSandbox",
                   env={"A": "x" * 300000})
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "SandboxService/CreateSandbox",
                   labels={"a": "x" * 20000})
        created = self.api.call("SandboxService/CreateSandbox", env={"A": "x" * 100000, "B": "x" * 100000})
        lease = json.loads(created.descriptor_json)["lease"]
        self.fails(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", "ExecService/Exec", lease=lease,
                   argv={"args": [b"true", b"x" * (3 << 20)]})
        ran = self.api.call("ExecService/Exec", lease=lease, shell=b"wc -c", stdin=b"x" * (1 << 20))
        self.assertEqual(ran.stdout.strip(), b"1048576")
        self.api.call("SandboxService/DestroySandbox", lease=lease)

    def test_names_that_are_no_text_still_have_an_answer(self):
        created = self.api.call("SandboxService/CreateSandbox")
        lease = json.loads(created.descriptor_json)["lease"]
        ran = self.api.call("ExecService/Exec", lease=lease, argv={"args": [b"/no\xffsuch"]})
        self.assertEqual(ran.exit_code, 127)
        self.fails(grpc.StatusCode.FAILED_PRECONDITION, "CWD_NOT_FOUND", "ExecService/Exec", lease=lease,
                   shell=b"true", cwd=b"/no\xffsuch")
        self.api.call("SandboxService/DestroySandbox", lease=lease)

    def test_leases_are_bounded(self):
        created = self.api.call("SandboxService/CreateSandbox")
        lease = owner = json.loads(created.descriptor_json)["lease"]
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in range(80):
                lease = json.loads(self.api.call("LeaseService/Connect", lease=lease).descriptor_json)["lease"]
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.api.call("SandboxService/DestroySandbox", lease=owner)

    def test_health(self):
        request = self.api.message("grpc.health.v1.HealthCheckRequest")
        reply = self.api.message("grpc.health.v1.HealthCheckResponse")
        check = self.api.channel.unary_unary("/grpc.health.v1.Health/Check",
                                             request_serializer=lambda m: m.SerializeToString(),
                                             response_deserializer=reply.FromString)
        self.assertEqual(check(request(), timeout=10).status, 1)
        self.assertEqual(check(request(service="sandlot.v1.ExecService"), timeout=10).status, 1)
        with self.assertRaises(grpc.RpcError) as caught:
            check(request(service="nope"), timeout=10)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        watch = self.api.channel.unary_stream("/grpc.health.v1.Health/Watch",
                                              request_serializer=lambda m: m.SerializeToString(),
                                              response_deserializer=reply.FromString)
        stream = watch(request(), timeout=20)
        self.assertEqual(next(iter(stream)).status, 1)
        stream.cancel()
        unknown = watch(request(service="nope"), timeout=20)
        self.assertEqual(next(iter(unknown)).status, 3)
        unknown.cancel()

    def test_tcp_listener_is_its_own_tenant(self):
        tcp = Broker("127.0.0.1:%d" % self.port)
        created = tcp.call("SandboxService/CreateSandbox", rollout_id="tcp-rollout")
        token = json.loads(created.descriptor_json)["lease"]
        self.assertEqual([s.id for s in tcp.call("SandboxService/ListSandboxes").sandboxes], [created.sandbox.id])
        seen = self.api.call("SandboxService/ListSandboxes", rollout_id="tcp-rollout").sandboxes
        self.assertEqual([s.id for s in seen], [created.sandbox.id])  # root administers
        tcp.call("SandboxService/DestroySandbox", lease=token)
        tcp.channel.close()

    def test_many_connections_leave_no_descriptors(self):
        with open("/proc/%d/task/%d/children" % (self.broker.pid, self.broker.pid)) as children:
            path = "/proc/%d/fd" % int(children.read().split()[0])
        Broker(self.socket).channel.close()
        before = len(os.listdir(path))
        for _ in range(40):
            channel = grpc.insecure_channel(self.socket, options=[("grpc.use_local_subchannel_pool", 1)])
            channel.unary_unary("/sandlot.v1.BrokerService/GetBrokerInfo", request_serializer=bytes,
                                response_deserializer=bytes)(b"", timeout=10)
            channel.close()
        deadline = time.time() + 20
        while len(os.listdir(path)) > before + 4 and time.time() < deadline:
            time.sleep(0.05)
        self.assertLessEqual(len(os.listdir(path)), before + 4)

    def test_abandoned_create_leaves_nothing(self):
        request = self.api.message("sandlot.v1.CreateSandboxRequest")
        create = self.api.channel.unary_unary("/sandlot.v1.SandboxService/CreateSandbox",
                                              request_serializer=lambda m: m.SerializeToString(),
                                              response_deserializer=bytes)
        files = [{"path": b"f%d" % i, "content": b"x"} for i in range(200)]  # takes a while
        for i in range(12):
            future = create.future(request(rollout_id="abandoned", files=files))
            time.sleep(0.001 * i)
            self.assertTrue(future.cancel())
        deadline = time.time() + 20
        while time.time() < deadline:
            left = [s for s in self.api.call("SandboxService/ListSandboxes", rollout_id="abandoned").sandboxes]
            if not left:
                break
            time.sleep(0.02)
        self.assertEqual(len(left), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
