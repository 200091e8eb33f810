"""A server for S3 on this machine, for tests: `python -m tests.s3_server PORT`. One request at a time.

moto checks a condition and stores the object in two steps; with one thread no other request comes between them, as on
a real server.
"""

from __future__ import annotations

import logging
import sys

if __name__ == "__main__":
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
