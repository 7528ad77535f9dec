"""The command `imageshards-worker`: a worker process for a runner such as Flink.

Runners that start processes instead of containers start it like this:

    --environment_type=PROCESS --environment_config='{"command": "imageshards-worker"}'

The runner passes the worker's id and the endpoint that provides its configuration (Beam's SDK
container contract, https://s.apache.org/beam-fn-api-container-contract).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs until the runner closes the connection.

    Args:
      arguments: the arguments of the command; None for those of this process.
    """
    parser = argparse.ArgumentParser(prog="imageshards-worker", description=__doc__)
    parser.add_argument("--id", required=True, help="id of the worker, set by the runner")
    parser.add_argument("--provision_endpoint", required=True, metavar="HOST:PORT")
    args, _ = parser.parse_known_args(arguments)

    import grpc

    from imageshards.launch.load import without_logs

    with without_logs():
        from apache_beam.portability.api import beam_provision_api_pb2 as provision
        from apache_beam.portability.api import beam_provision_api_pb2_grpc as provision_grpc
        from apache_beam.runners.worker import sdk_worker_main
    from google.protobuf import json_format, text_format

    with grpc.insecure_channel(args.provision_endpoint) as channel:
        stub = provision_grpc.ProvisionServiceStub(channel)
        info = stub.GetProvisionInfo(
            provision.GetProvisionInfoRequest(),
            metadata=[("worker_id", args.id)],
            timeout=60,
            wait_for_ready=True,
        ).info
    os.environ.update(
        WORKER_ID=args.id,
        PIPELINE_OPTIONS=json_format.MessageToJson(info.pipeline_options),
        CONTROL_API_SERVICE_DESCRIPTOR=text_format.MessageToString(info.control_endpoint),
        LOGGING_API_SERVICE_DESCRIPTOR=text_format.MessageToString(info.logging_endpoint),
        RUNNER_CAPABILITIES=" ".join(info.runner_capabilities),
    )
    sdk_worker_main.main([])


if __name__ == "__main__":
    main()
