"""A client that knows nothing but an address: it learns the whole contract by server reflection,
with Debian's python3-grpcio and python3-protobuf alone."""
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

REFLECTION = "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo"


def field(number, text):
    data = text.encode()
    return bytes([number << 3 | 2, len(data)]) + data


def reflect(channel, version, request):
    """One request of the reflection protocol, hand-encoded; returns the response's fields."""
    call = channel.stream_stream(REFLECTION % version, request_serializer=bytes,
                                 response_deserializer=bytes)
    return parse(next(iter(call(iter([request]), timeout=10))))


def parse(data):
    """Length-delimited and varint fields of a protobuf message as {number: [values]}."""
    fields, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 2:
            size = varint()
            value = data[at:at + size]
            at += size
        else:
            value = varint()
        fields.setdefault(tag >> 3, []).append(value)
    return fields


class Broker:
    def __init__(self, address, version="v1"):
        self.channel = grpc.insecure_channel(address)
        self.version = version
        self.pool = descriptor_pool.DescriptorPool()
        self.known = set()
        listed = parse(reflect(self.channel, version, field(7, "*"))[6][0])
        self.services = [parse(entry)[1][0].decode() for entry in listed[1]]
        for service in self.services:
            self.load(service)

    def load(self, symbol):
        response = reflect(self.channel, self.version, field(4, symbol))
        files = [descriptor_pb2.FileDescriptorProto.FromString(raw)
                 for raw in parse(response[4][0])[1]]
        for proto in reversed(files):
            if proto.name not in self.known:
                self.known.add(proto.name)
                self.pool.Add(proto)

    def message(self, name):
        descriptor = self.pool.FindMessageTypeByName(name)
        maker = getattr(message_factory, "GetMessageClass", None)
        return maker(descriptor) if maker else message_factory.MessageFactory(self.pool).GetPrototype(descriptor)

    def call(self, method, lease=None, timeout=30, **fields):
        """A unary call: call("SandboxService/GetSandbox", lease=token, sandbox_id="...")."""
        service, name = method.split("/")
        descriptor = self.pool.FindServiceByName("sandlot.v1." + service).methods_by_name[name]
        request = self.message(descriptor.input_type.full_name)(**fields)
        reply = self.message(descriptor.output_type.full_name)
        stub = self.channel.unary_unary("/sandlot.v1." + method,
                                        request_serializer=lambda m: m.SerializeToString(),
                                        response_deserializer=reply.FromString)
        metadata = [("sandlot-lease", lease)] if lease else []
        return stub(request, timeout=timeout, metadata=metadata)
