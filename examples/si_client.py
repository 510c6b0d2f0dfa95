"""A resource manager by YuniKorn's scheduler interface: grpcio, grpcio-tools and rfc/si.proto, nothing of fluxsched.

It needs `pip install grpcio grpcio-tools`, and the address that `fluxsched si serve` prints, else it starts one.
"""

import queue
import subprocess
import sys
import uuid
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).parents[1] / "rfc"))  # grpc looks for .proto files where Python looks for modules
si, services = grpc.protos_and_services("si.proto")

RM = f"example-{uuid.uuid4()}"
WAIT_S = 30


class Stream:
    """One of the three streams: a queue of requests, and the items of the responses."""

    def __init__(self, method, request):
        self.requests = queue.SimpleQueue()
        self.request = request
        self.responses = method(iter(self.requests.get, None), timeout=WAIT_S)
        self.items = []

    def send(self, **fields):
        self.requests.put(self.request(rmID=RM, **fields))

    def first(self, name):
        """Return the first item of the list `name` in the responses; exit at a rejection."""
        while True:
            for place, (found, item) in enumerate(self.items):
                if found == "rejected":
                    sys.exit(f"rejected: {item.reason}")
                if found == name:
                    return self.items.pop(place)[1]
            self.items += [(field.name, item) for field, items in next(self.responses).ListFields() for item in items]


def resource(**amounts):
    return si.Resource(resources={kind: si.Quantity(value=value) for kind, value in amounts.items()})


def main(address):
    with grpc.insecure_channel(address) as channel:
        scheduler = services.SchedulerStub(channel)
        scheduler.RegisterResourceManager(si.RegisterResourceManagerRequest(rmID=RM, version="1.2"), timeout=WAIT_S)
        nodes = Stream(scheduler.UpdateNode, si.NodeRequest)
        applications = Stream(scheduler.UpdateApplication, si.ApplicationRequest)
        allocations = Stream(scheduler.UpdateAllocation, si.AllocationRequest)

        whole = resource(vcore=4000, memory=8 << 30)  # 4 cores in thousandths, 8 GiB
        nodes.send(nodes=[si.NodeInfo(nodeID="n1", action=si.NodeInfo.CREATE, schedulableResource=whole)])
        print("node", nodes.first("accepted").nodeID)
        applications.send(new=[si.AddApplicationRequest(applicationID="app", queueName="root.physics")])
        print("application", applications.first("accepted").applicationID)

        half = resource(vcore=2000, memory=4 << 30)
        ask = si.AllocationAsk(allocationKey="task", applicationID="app", resourceAsk=half, maxAllocations=2)
        allocations.send(asks=[ask])
        for _ in range(2):
            found = allocations.first("new")
            print("allocated", found.allocationKey, "on", found.nodeID)
            gone = si.AllocationRelease(applicationID="app", UUID=found.UUID, terminationType=si.STOPPED_BY_RM)
            allocations.send(releases=si.AllocationReleasesRequest(allocationsToRelease=[gone]))
            print("released", allocations.first("released").allocationKey)
        for stream in (nodes, applications, allocations):
            stream.requests.put(None)  # half-closing all streams shuts the resource manager down


if len(sys.argv) > 1:
    main(sys.argv[1])
else:
    with subprocess.Popen(["fluxsched", "si", "serve"], stdout=subprocess.PIPE, text=True) as service:
        main(service.stdout.readline().strip())
        service.terminate()
